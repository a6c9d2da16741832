#ifndef COXSWAIN_CLIENT_COMM_MEMORY_RUNS_H_
#define COXSWAIN_CLIENT_COMM_MEMORY_RUNS_H_

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

  // Calls `function` with each run of these bytes, and where it begins among
  // them.
  template <typename Function>
  void ForEach(int64_t begin, int64_t bytes, const Function& function) const {
    for (int64_t done = 0; done < bytes;) {
      MemoryRun run = From(begin + done);
      run.bytes = std::min(run.bytes, bytes - done);
      function(run, done);
      done += run.bytes;
    }
  }

 private:
  std::vector<MemoryRun> runs_;
  std::vector<int64_t> begins_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_MEMORY_RUNS_H_
