#ifndef COXSWAIN_CLIENT_COMM_TCP_RUNS_H_
#define COXSWAIN_CLIENT_COMM_TCP_RUNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/device/tensor.h"

namespace coxswain {

// Memory without gaps.
struct MemoryRun {
  char* data = nullptr;
  int64_t bytes = 0;
};

// Memory in several runs, whose bytes count as if they lay one after the other.
// Immutable.
class Runs {
 public:
  // `spans` have elements.
  explicit Runs(const std::vector<Span>& spans) {
    int64_t begin = 0;
    for (const Span& span : spans) {
      runs_.push_back({static_cast<char*>(span.data), span.bytes()});
      begins_.push_back(begin);
      begin += span.bytes();
    }
  }

  const std::vector<MemoryRun>& all() const { return runs_; }

  // Returns the memory from byte `at` on, up to the end of its run.
  MemoryRun From(int64_t at) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), at);
    const auto i = static_cast<size_t>(after - begins_.begin()) - 1;
    const int64_t skipped = at - begins_[i];
    return {runs_[i].data + skipped, runs_[i].bytes - skipped};
  }

 private:
  std::vector<MemoryRun> runs_;
  std::vector<int64_t> begins_;
};

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
