#ifndef COXSWAIN_SCHEDULE_SCHEDULE_ERRORS_H_
#define COXSWAIN_SCHEDULE_SCHEDULE_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::schedule {

// How the components of the schedule name ranks, and their error with its typed
// detail (coxswain.v1.ErrorDetail.schedule_mismatch).

// Returns a text such as "rank 3", "ranks 0-6, 8", or "ranks 0, 2, 4, 6, 8, 10
// and 90 more". Takes the ranks in ascending order.
std::string RankList(const std::vector<int>& ranks);

// Returns a duration rounded for display: "250ms", "12.3s", "5m".
std::string Rounded(absl::Duration duration);

struct ScheduleMismatch {
  std::string stream;
  int64_t round = 0;
  std::vector<int> outliers;  // ascending
  std::vector<std::string> differences;
};

// Returns ABORTED, whose detail has as many of the ranks and lines as fit.
absl::Status ScheduleMismatchError(absl::string_view message,
                                   const ScheduleMismatch& mismatch);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_SCHEDULE_ERRORS_H_
