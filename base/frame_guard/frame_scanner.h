#ifndef COXSWAIN_BASE_FRAME_GUARD_FRAME_SCANNER_H_
#define COXSWAIN_BASE_FRAME_GUARD_FRAME_SCANNER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// Follows the frames that a client of HTTP/2 sends (RFC 9113, 4.1), and says
// when they are no client's: headers without an end, which cost the square of
// their length in gRPC 1.51. Of a frame it looks at the first nine bytes alone.
// Owned by the guard, one for each connection. Thread-compatible.
class FrameScanner {
 public:
  // Of one block of headers, on the wire: gRPC refuses 8 KiB of them, as they
  // are without compression.
  static constexpr size_t kMaxHeaderBytes = 32 << 10;
  static constexpr int kMaxHeaderFrames = 32;

  // What came next, in pieces of any size. RESOURCE_EXHAUSTED if the connection
  // is to be ended; then it is over.
  absl::Status Scan(absl::string_view bytes);

  // Calls that the client has begun.
  int64_t calls() const { return calls_; }

 private:
  static constexpr size_t kFrameHeader = 9;

  absl::Status OnFrame();

  size_t preface_ = 24;  // bytes of it that are to come
  unsigned char header_[kFrameHeader] = {};
  size_t header_size_ = 0;
  size_t payload_ = 0;  // bytes of the frame that are to come
  size_t block_bytes_ = 0;
  int block_frames_ = 0;
  int64_t calls_ = 0;
  uint32_t newest_stream_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_FRAME_GUARD_FRAME_SCANNER_H_
