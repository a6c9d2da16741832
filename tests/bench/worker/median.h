#ifndef COXSWAIN_TESTS_BENCH_WORKER_MEDIAN_H_
#define COXSWAIN_TESTS_BENCH_WORKER_MEDIAN_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace coxswain::bench {

// Returns the median time of some calls, in seconds, each of which begins on
// all ranks as nearly at once as the calls before it allow.
inline absl::StatusOr<double> Median(
    int64_t count, const std::function<absl::Status()>& call) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < count; ++i) {
    const absl::Time begun = Clock::Real()->Now();
    COXSWAIN_RETURN_IF_ERROR(call());
    seconds.push_back(absl::ToDoubleSeconds(Clock::Real()->Now() - begun));
  }
  const auto middle =
      seconds.begin() + static_cast<int64_t>(seconds.size()) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_WORKER_MEDIAN_H_
