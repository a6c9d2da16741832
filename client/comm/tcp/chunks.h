#ifndef COXSWAIN_CLIENT_COMM_TCP_CHUNKS_H_
#define COXSWAIN_CLIENT_COMM_TCP_CHUNKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/host_memory.h"
#include "client/comm/tcp/runs.h"
#include "client/device/tensor.h"

namespace coxswain {

// Bytes, divided into chunks of equal size but for the last.
struct Chunked {
  char* data = nullptr;  // of the first byte
  int64_t bytes = 0;
  int64_t chunk_bytes = 1;
  // As in Piece.
  const Runs* runs = nullptr;
  int64_t begin = 0;

  int64_t chunks() const { return (bytes + chunk_bytes - 1) / chunk_bytes; }
  Piece chunk(int64_t i) const {
    const int64_t at = i * chunk_bytes;
    const int64_t size = std::min(chunk_bytes, bytes - at);
    if (runs == nullptr) return {data + at, size};
    return {runs->From(begin + at).data, size, runs, begin + at};
  }
};

inline Chunked InChunks(const Span& span, int64_t chunk_bytes) {
  return {static_cast<char*>(span.data), span.bytes(), chunk_bytes};
}

// Calls `visit(at, first, second, bytes)` for two pieces of one size, as far as
// neither has a gap at a time: `at` counts from their beginning.
template <typename Visit>
void ForEachRun(const Piece& first, const Piece& second, const Visit& visit) {
  for (int64_t at = 0; at < first.bytes;) {
    const MemoryRun one = first.From(at);
    const MemoryRun other = second.From(at);
    const int64_t bytes = std::min(one.bytes, other.bytes);
    visit(at, one.data, other.data, bytes);
    at += bytes;
  }
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
