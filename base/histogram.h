#ifndef COXSWAIN_BASE_HISTOGRAM_H_
#define COXSWAIN_BASE_HISTOGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace coxswain {

// Durations, counted by how long they were, in seconds. A value; under its
// owner's lock.
class Histogram {
 public:
  // From a step on one GPU to a checkpoint on a slow disk. The last bucket,
  // which takes all others, is not in the list.
  static constexpr std::array<double, 16> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
      0.5,   1,      2.5,   5,    10,    30,   60,  300};

  void Observe(double seconds) {
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    ++counts_[bucket];
    ++count_;
    sum_ += seconds;
  }

  // Returns the number of durations of at most kBounds[bucket].
  uint64_t Cumulative(size_t bucket) const {
    uint64_t total = 0;
    for (size_t i = 0; i <= bucket && i < counts_.size(); ++i) {
      total += counts_[i];
    }
    return total;
  }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::array<uint64_t, kBounds.size() + 1> counts_ = {};
  uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_HISTOGRAM_H_
