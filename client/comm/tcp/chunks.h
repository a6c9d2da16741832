#ifndef COXSWAIN_CLIENT_COMM_TCP_CHUNKS_H_
#define COXSWAIN_CLIENT_COMM_TCP_CHUNKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/host_memory.h"
#include "client/comm/tcp/transfer.h"
#include "client/device/tensor.h"

namespace coxswain {

// A run of bytes, divided into chunks of equal size but for the last.
struct Chunked {
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t chunk_bytes = 1;

  int64_t chunks() const { return (bytes + chunk_bytes - 1) / chunk_bytes; }
  Piece chunk(int64_t i) const {
    const int64_t begin = i * chunk_bytes;
    return {data + begin, std::min(chunk_bytes, bytes - begin)};
  }
};

inline Chunked InChunks(const Span& span, int64_t chunk_bytes) {
  return {static_cast<char*>(span.data), span.bytes(), chunk_bytes};
}

// Memory that one collective after the other uses, so that none pays for new
// pages.
class Scratch {
 public:
  // Returns at least so many bytes with undefined contents, until the next
  // call; null if there is no memory.
  char* Get(int64_t bytes) {
    if (bytes > bytes_) {
      memory_ = AllocateHostMemory(static_cast<size_t>(bytes));
      bytes_ = memory_ == nullptr ? 0 : bytes;
    }
    return static_cast<char*>(memory_.get());
  }

 private:
  HostMemory memory_;
  int64_t bytes_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_CHUNKS_H_
