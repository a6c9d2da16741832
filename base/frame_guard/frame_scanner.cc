#include "base/frame_guard/frame_scanner.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

constexpr unsigned char kHeaders = 1;
constexpr unsigned char kContinuation = 9;

}  // namespace

absl::Status FrameScanner::OnFrame() {
  const unsigned char type = header_[3];
  if (type != kHeaders && type != kContinuation) return absl::OkStatus();
  if (type == kHeaders) {
    block_bytes_ = 0;
    block_frames_ = 0;
    const uint32_t stream = (header_[5] & 0x7fu) << 24 | header_[6] << 16 |
                            header_[7] << 8 | header_[8];
    // Trailers belong to a call that has begun.
    if (stream > newest_stream_) ++calls_;
    newest_stream_ = std::max(newest_stream_, stream);
  }
  block_bytes_ += payload_;
  ++block_frames_;
  if (block_bytes_ <= kMaxHeaderBytes && block_frames_ <= kMaxHeaderFrames) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "headers of a call of ", block_bytes_, " bytes in ", block_frames_,
      " frames; there may be ", kMaxHeaderBytes, " in ", kMaxHeaderFrames));
}

absl::Status FrameScanner::Scan(absl::string_view bytes) {
  const auto skip = [&bytes](size_t* wanted) {
    const size_t size = std::min(*wanted, bytes.size());
    *wanted -= size;
    bytes.remove_prefix(size);
  };
  skip(&preface_);
  while (!bytes.empty()) {
    if (payload_ > 0) {
      skip(&payload_);
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
