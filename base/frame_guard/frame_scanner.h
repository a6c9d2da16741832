#ifndef COXSWAIN_BASE_FRAME_GUARD_FRAME_SCANNER_H_
#define COXSWAIN_BASE_FRAME_GUARD_FRAME_SCANNER_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// Follows the frames that a client of HTTP/2 sends (RFC 9113, 4.1), says when
// they are no client's: headers without an end, which cost the square of their
// length in gRPC 1.51; and counts what the server has to hold for them. Of a
// frame it looks at the first nine bytes, and in data at the five before each
// message ("gRPC over HTTP/2", Length-Prefixed-Message). Owned by the guard,
// one for each connection. Thread-compatible.
class FrameScanner {
 public:
  // Of one block of headers, on the wire: gRPC refuses 8 KiB of them, as they
  // are without compression.
  static constexpr size_t kMaxHeaderBytes = 32 << 10;
  static constexpr int kMaxHeaderFrames = 32;
  // Calls under way; a server that bounds them itself has fewer.
  static constexpr size_t kMaxCalls = 16'384;

  // What came next, in pieces of any size. RESOURCE_EXHAUSTED if the connection
  // is to be ended; then it is over.
  absl::Status Scan(absl::string_view bytes);

  // The server has ended a call. The client's reset does it too.
  void EndCall(uint32_t stream);

  // Calls that the client has begun, and those that it has reset while they
  // were under way.
  int64_t calls() const { return calls_; }
  int64_t resets() const { return resets_; }
  // Of calls that are under way: how many, and the bytes of their first
  // messages and of the one that is not whole yet. A later message is its
  // service's when it is whole.
  int64_t open_calls() const { return static_cast<int64_t>(open_.size()); }
  int64_t held_bytes() const { return held_; }

 private:
  static constexpr size_t kFrameHeader = 9;
  static constexpr int kMessagePrefix = 5;

  struct Call {
    int prefix = 0;          // bytes of it that have come
    uint32_t rest = 0;       // of the message: bytes that are to come
    int64_t unfinished = 0;  // of the message: bytes that have come
    int64_t first = 0;       // bytes of the first message
    bool has_first = false;
  };

  absl::Status OnFrame();
  absl::Status OnHeaders(uint32_t stream);
  void OnData(Call* call, absl::string_view bytes);
  void OnWholeMessage(Call* call);

  size_t preface_ = 24;  // bytes of it that are to come
  unsigned char header_[kFrameHeader] = {};
  size_t header_size_ = 0;
  size_t payload_ = 0;        // bytes of the frame that are to come
  uint32_t data_stream_ = 0;  // whose messages they are; 0: they are none
  size_t block_bytes_ = 0;
  int block_frames_ = 0;
  int64_t calls_ = 0;
  int64_t resets_ = 0;
  int64_t held_ = 0;
  uint32_t newest_stream_ = 0;
  std::unordered_map<uint32_t, Call> open_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_FRAME_GUARD_FRAME_SCANNER_H_
