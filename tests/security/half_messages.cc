#include "tests/security/half_messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/security/http2.h"

namespace coxswain {
namespace {

constexpr int64_t kFirstWindow = 65'535;  // RFC 9113, 6.9.2
constexpr size_t kFrameHeader = 9;
constexpr size_t kPiece = 16'384;
constexpr size_t kMore = 256 << 10;
// More than a message may have: gRPC looks once it is whole.
constexpr uint32_t kMessage = 64 << 20;
constexpr uint16_t kInitialWindowSize = 4;
constexpr uint8_t kAck = 1;

}  // namespace

HalfMessages::HalfMessages(int calls, size_t padding)
    : padding_(padding), window_(kFirstWindow), first_window_(kFirstWindow) {
  for (int i = 0; i < calls; ++i) {
    calls_[2 * static_cast<uint32_t>(i) + 1] = {kFirstWindow, kMessage - 1,
                                                false};
  }
}

void HalfMessages::Take(absl::string_view bytes) {
  received_.append(bytes.data(), bytes.size());
  absl::string_view rest = received_;
  while (rest.size() >= kFrameHeader) {
    const size_t size = Http2Number(rest, 0, 3);
    if (rest.size() < kFrameHeader + size) break;
    OnFrame(static_cast<uint8_t>(rest[3]), static_cast<uint8_t>(rest[4]),
            Http2Number(rest, 5, 4), rest.substr(kFrameHeader, size));
    rest.remove_prefix(kFrameHeader + size);
  }
  received_ = std::string(rest);
}

void HalfMessages::OnFrame(uint8_t type, uint8_t flags, uint32_t stream,
                           absl::string_view payload) {
  if (type == kHttp2WindowUpdate) {
    const int64_t more = Http2Number(payload, 0, 4);
    if (stream == 0) window_ += more;
    const auto call = calls_.find(stream);
    if (call != calls_.end()) call->second.window += more;
  } else if (type == kHttp2Settings && flags != kAck) {
    for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
      if (Http2Number(payload, at, 2) != kInitialWindowSize) continue;
      const int64_t window = Http2Number(payload, at + 2, 4);
      for (auto& [id, call] : calls_) call.window += window - first_window_;
      first_window_ = window;
    }
    answers_ += Http2Frame(kHttp2Settings, kAck, 0, "");
  } else if (type == kHttp2Ping && flags != kAck) {
    answers_ += Http2Frame(kHttp2Ping, kAck, 0, payload);
  } else if (type == kHttp2Headers || type == kHttp2Reset) {
    calls_.erase(stream);  // It has been answered.
  }
}

std::string HalfMessages::Data(uint32_t stream, Call* call) {
  std::string payload;
  if (!call->begun) payload = GrpcMessagePrefix(kMessage);
  const int64_t size = std::min({call->left, call->window, window_,
                                 static_cast<int64_t>(kPiece)}) -
                       static_cast<int64_t>(payload.size());
  if (size <= 0) return "";
  std::string frame;
  if (!call->begun) {
    std::string headers = GrpcHeaders("/coxswain.v1.Rendezvous/Describe");
    if (padding_ > 0) headers += PaddingHeader(padding_);
    frame = Http2Frame(kHttp2Headers, kHttp2EndHeaders, stream, headers);
    call->begun = true;
  }
  payload.append(static_cast<size_t>(size), 'x');
  call->left -= size;
  call->window -= static_cast<int64_t>(payload.size());
  window_ -= static_cast<int64_t>(payload.size());
  return absl::StrCat(frame, Http2Frame(kHttp2Data, 0, stream, payload));
}

std::string HalfMessages::More() {
  std::string more;
  more.swap(answers_);
  for (auto& [stream, call] : calls_) {
    while (more.size() < kMore) {
      const std::string data = Data(stream, &call);
      if (data.empty()) break;
      more += data;
    }
    // Nothing else can be sent either, in the order in which calls begin.
    if (window_ <= 0 || !call.begun) break;
  }
  return more;
}

}  // namespace coxswain
