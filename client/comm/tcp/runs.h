#ifndef COXSWAIN_CLIENT_COMM_TCP_RUNS_H_
#define COXSWAIN_CLIENT_COMM_TCP_RUNS_H_

#include <algorithm>
#include <cstdint>

#include "client/comm/memory_runs.h"

namespace coxswain {

// Memory of a chunk. Null: not ready yet.
struct Piece {
  char* data = nullptr;  // of its first byte
  int64_t bytes = 0;
  // Where it is in several runs: those, and where it begins among them.
  const Runs* runs = nullptr;
  int64_t begin = 0;

  // Returns the memory from byte `at` on, as far as it has no gap.
  MemoryRun From(int64_t at) const {
    if (runs == nullptr) return {data + at, bytes - at};
    const MemoryRun run = runs->From(begin + at);
    return {run.data, std::min(run.bytes, bytes - at)};
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_RUNS_H_
