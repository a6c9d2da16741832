#include "base/frame_guard/frame_scanner.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

constexpr unsigned char kData = 0;
constexpr unsigned char kHeaders = 1;
constexpr unsigned char kReset = 3;
constexpr unsigned char kContinuation = 9;

}  // namespace

absl::Status FrameScanner::OnFrame() {
  const unsigned char type = header_[3];
  const uint32_t stream = (header_[5] & 0x7fu) << 24 | header_[6] << 16 |
                          header_[7] << 8 | header_[8];
  data_stream_ = 0;
  switch (type) {
    case kData:
      data_stream_ = stream;
      return absl::OkStatus();
    case kReset:
      if (open_.count(stream) > 0) ++resets_;
      EndCall(stream);
      return absl::OkStatus();
    case kHeaders:
      block_bytes_ = 0;
      block_frames_ = 0;
      return OnHeaders(stream);
    case kContinuation:
      return OnHeaders(stream);
    default:
      return absl::OkStatus();
  }
}

absl::Status FrameScanner::OnHeaders(uint32_t stream) {
  block_bytes_ += payload_;
  ++block_frames_;
  if (block_bytes_ > kMaxHeaderBytes || block_frames_ > kMaxHeaderFrames) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "headers of a call of ", block_bytes_, " bytes in ", block_frames_,
        " frames; there may be ", kMaxHeaderBytes, " in ", kMaxHeaderFrames));
  }
  // What else comes of a stream are its trailers.
  if (stream <= newest_stream_) return absl::OkStatus();
  newest_stream_ = stream;
  ++calls_;
  open_[stream] = Call();
  if (open_.size() <= kMaxCalls) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("more than ", kMaxCalls, " calls under way"));
}

void FrameScanner::EndCall(uint32_t stream) {
  const auto found = open_.find(stream);
  if (found == open_.end()) return;
  held_ -= found->second.first + found->second.unfinished;
  open_.erase(found);
}

void FrameScanner::OnData(Call* call, absl::string_view bytes) {
  while (!bytes.empty()) {
    if (call->prefix < kMessagePrefix) {
      // A byte that says whether it is compressed, then the length.
      if (call->prefix > 0) {
        call->rest = call->rest << 8 | static_cast<unsigned char>(bytes[0]);
      }
      bytes.remove_prefix(1);
      ++call->prefix;
    } else {
      const size_t size = std::min<size_t>(call->rest, bytes.size());
      call->rest -= static_cast<uint32_t>(size);
      call->unfinished += static_cast<int64_t>(size);
      held_ += static_cast<int64_t>(size);
      bytes.remove_prefix(size);
    }
    if (call->prefix == kMessagePrefix && call->rest == 0) OnWholeMessage(call);
  }
}

void FrameScanner::OnWholeMessage(Call* call) {
  if (call->has_first) {
    held_ -= call->unfinished;
  } else {
    call->has_first = true;
    call->first = call->unfinished;
  }
  call->prefix = 0;
  call->unfinished = 0;
}

absl::Status FrameScanner::Scan(absl::string_view bytes) {
  const auto take = [&bytes](size_t* wanted) {
    const absl::string_view taken =
        bytes.substr(0, std::min(*wanted, bytes.size()));
    *wanted -= taken.size();
    bytes.remove_prefix(taken.size());
    return taken;
  };
  take(&preface_);
  while (!bytes.empty()) {
    if (payload_ > 0) {
      const absl::string_view payload = take(&payload_);
      const auto call = open_.find(data_stream_);
      if (call != open_.end()) OnData(&call->second, payload);
      continue;
    }
    const size_t size = std::min(kFrameHeader - header_size_, bytes.size());
    std::memcpy(header_ + header_size_, bytes.data(), size);
    bytes.remove_prefix(size);
    header_size_ += size;
    if (header_size_ < kFrameHeader) continue;
    header_size_ = 0;
    payload_ = static_cast<size_t>(header_[0]) << 16 |
               static_cast<size_t>(header_[1]) << 8 | header_[2];
    const absl::Status status = OnFrame();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace coxswain
