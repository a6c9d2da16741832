#ifndef COXSWAIN_BASE_BACKOFF_H_
#define COXSWAIN_BASE_BACKOFF_H_

#include <algorithm>

#include "absl/time/time.h"
#include "base/random.h"

namespace coxswain {

// Exponential backoff with full jitter: the n-th delay is uniform in
// [base, min(cap, base * 2^n)], so that peers which failed together do not
// come back together. One thread only.
class Backoff {
 public:
  Backoff(absl::Duration base, absl::Duration cap, RandomSource* random)
      : base_(base), cap_(cap), limit_(base), random_(random) {}

  // Returns the next delay.
  absl::Duration Next() {
    const absl::Duration delay = base_ + (limit_ - base_) * random_->Uniform();
    limit_ = std::min(cap_, limit_ * 2);
    return delay;
  }

  void Reset() { limit_ = base_; }

 private:
  absl::Duration base_;
  absl::Duration cap_;
  absl::Duration limit_;
  RandomSource* random_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_BACKOFF_H_
