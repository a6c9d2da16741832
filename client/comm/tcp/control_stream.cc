#include "client/comm/tcp/control_stream.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "base/status_macros.h"
#include "client/comm/wire.h"

namespace coxswain {
namespace {

constexpr auto kFixedBytes = static_cast<int64_t>(ControlFrame::kFixed);
using FixedPart = std::array<char, ControlFrame::kFixed>;

FixedPart EncodeFrame(const ControlFrame& frame) {
  FixedPart fixed = {};
  char* at = fixed.data();
  at = PutLittleEndian(static_cast<uint32_t>(frame.kind), at);
  at = PutLittleEndian(frame.tag, at);
  at = PutLittleEndian(frame.id, at);
  at = PutLittleEndian(frame.bytes, at);
  const CollectiveHeaderBytes header = Encode(frame.header);
  std::memcpy(at, header.data(), header.size());
  return fixed;
}

std::optional<ControlFrame> DecodeFrame(const FixedPart& fixed) {
  ControlFrame frame;
  uint32_t kind = 0;
  const char* at = GetLittleEndian(fixed.data(), &kind);
  at = GetLittleEndian(at, &frame.tag);
  at = GetLittleEndian(at, &frame.id);
  at = GetLittleEndian(at, &frame.bytes);
  CollectiveHeaderBytes header;
  std::memcpy(header.data(), at, header.size());
  const auto decoded = DecodeCollectiveHeader(header);
  if (kind < static_cast<uint32_t>(ControlFrame::Kind::kAnnounce) ||
      kind > static_cast<uint32_t>(ControlFrame::Kind::kClose) ||
      frame.bytes < 0 || !decoded.has_value()) {
    return std::nullopt;
  }
  frame.kind = static_cast<ControlFrame::Kind>(kind);
  frame.header = *decoded;
  return frame;
}

bool Answers(ControlFrame::Kind kind) {
  return kind == ControlFrame::Kind::kClear ||
         kind == ControlFrame::Kind::kTaken ||
         kind == ControlFrame::Kind::kRefused;
}

// Where bytes go that no receiver waits for.
constexpr int64_t kSinkBytes = 16 << 10;
char* Sink() {
  static thread_local char sink[kSinkBytes];
  return sink;
}

}  // namespace

void ControlStream::Queue(const ControlFrame& frame, const char* bytes,
                          std::shared_ptr<char> memory) {
  if (ended_) return;
  if (frame.kind == ControlFrame::Kind::kFreed) {
    // A peer that does not read would have one more kept for each block.
    const auto earlier =
        std::find_if(output_.begin(), output_.end(), [&](const Output& one) {
          return one.kind == frame.kind && one.tag == frame.tag &&
                 one.sender == frame.header.root && !HasBegun(one);
        });
    if (earlier != output_.end()) {
      earlier->fixed = EncodeFrame(frame);
      return;
    }
  }
  Output output;
  output.kind = frame.kind;
  output.tag = frame.tag;
  output.sender = frame.header.root;
  output.fixed = EncodeFrame(frame);
  output.bytes = bytes;
  output.size = kFixedBytes + frame.bytes;
  // Blocks are never dropped, and count by themselves.
  output.id = frame.kind == ControlFrame::Kind::kSlot ? 0 : frame.id;
  output.memory = std::move(memory);
  if (Answers(frame.kind)) ++answers_;
  output_.push_back(std::move(output));
}

absl::StatusOr<int64_t> ControlStream::Flush() {
  int64_t total = 0;
  while (!output_.empty() && total < kTurnBytes) {
    Output& output = output_.front();
    // Each time as much, whatever was sent before: what a Send has not taken
    // must come again.
    const int64_t of_fixed = std::min(output.sent, kFixedBytes);
    const int64_t of_bytes = output.sent - of_fixed;
    const iovec parts[] = {
        {output.fixed.data() + of_fixed,
         static_cast<size_t>(kFixedBytes - of_fixed)},
        {const_cast<char*>(output.bytes) + (of_bytes - output.skipped),
         static_cast<size_t>(
             std::min(output.size - kFixedBytes - of_bytes, kTurnBytes))}};
    COXSWAIN_ASSIGN_OR_RETURN(
        const int64_t sent,
        stream_.Send(parts, output.size > kFixedBytes ? 2 : 1));
    output.sent += sent;
    total += sent;
    if (output.sent < output.size) break;
    if (Answers(output.kind)) --answers_;
    output_.pop_front();
  }
  if (ended_ && output_.empty()) stream_.EndSending();
  return total;
}

bool ControlStream::IsWriting(uint64_t id) const {
  return std::any_of(output_.begin(), output_.end(), [&](const Output& one) {
    return one.id == id && one.bytes != nullptr;
  });
}

void ControlStream::Drop(uint64_t id) {
  for (auto output = output_.begin(); output != output_.end();) {
    if (output->id != id || output->bytes == nullptr) {
      ++output;
      continue;
    }
    if (HasBegun(*output)) return End();
    output = output_.erase(output);
  }
}

void ControlStream::Discard(const char* memory, int64_t bytes) {
  if (place_ >= memory && place_ < memory + bytes) place_ = nullptr;
}

absl::Status ControlStream::Read(const Handlers& handlers, int64_t limit) {
  while (limit > 0 || stream_.decrypted() > 0) {
    char* to = nullptr;
    int64_t wanted = 0;
    if (read_ < kFixedBytes) {
      to = fixed_.data() + read_;
      wanted = kFixedBytes - read_;
    } else {
      wanted = kFixedBytes + frame_.bytes - read_;
      to = place_ == nullptr ? Sink() : place_ + (read_ - kFixedBytes);
      if (place_ == nullptr) wanted = std::min(wanted, kSinkBytes);
    }
    wanted = std::min(wanted, limit > 0 ? limit : stream_.decrypted());
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t received,
                              stream_.Receive(to, wanted));
    if (received == 0) return absl::OkStatus();
    limit -= received;
    const bool had_fixed = read_ >= kFixedBytes;
    read_ += received;
    if (read_ < kFixedBytes) continue;
    if (!had_fixed) {
      const auto frame = DecodeFrame(fixed_);
      if (!frame.has_value()) {
        return absl::InvalidArgumentError("it sent what makes no sense");
      }
      frame_ = *frame;
      place_ = nullptr;
      if (frame_.bytes > 0) {
        COXSWAIN_ASSIGN_OR_RETURN(place_, handlers.place(frame_));
      }
    }
    if (read_ < kFixedBytes + frame_.bytes) continue;
    read_ = 0;
    place_ = nullptr;
    COXSWAIN_RETURN_IF_ERROR(handlers.take(frame_));
  }
  return absl::OkStatus();
}

bool ControlStream::Own(Output* output) {
  if (output->bytes == nullptr || output->memory != nullptr) return true;
  const int64_t written = std::max<int64_t>(output->sent - kFixedBytes, 0);
  const int64_t left = output->size - kFixedBytes - written;
  if (left > kMaxCopied) return false;
  const std::shared_ptr<char> copy(new char[static_cast<size_t>(left)],
                                   std::default_delete<char[]>());
  std::memcpy(copy.get(), output->bytes + (written - output->skipped),
              static_cast<size_t>(left));
  output->memory = copy;
  output->bytes = copy.get();
  output->skipped = written;
  output->id = 0;  // it is not dropped with its message
  return true;
}

void ControlStream::EndWith(const ControlFrame& last, absl::string_view bytes) {
  if (ended_) return;
  for (auto output = output_.begin(); output != output_.end();) {
    const bool stays = HasBegun(*output) || Answers(output->kind);
    output = stays ? std::next(output) : output_.erase(output);
  }
  if (!output_.empty() && !Own(&output_.front())) return End();
  Queue(last, bytes.data());
  Own(&output_.back());
  ended_ = true;
}

void ControlStream::End() {
  if (ended_) return;
  ended_ = true;
  output_.clear();
  answers_ = 0;
  stream_.EndSending();
}

}  // namespace coxswain
