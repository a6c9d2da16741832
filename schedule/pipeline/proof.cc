#include "schedule/pipeline/proof.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "schedule/pipeline/execution.h"

namespace coxswain::pipeline {
namespace {

constexpr size_t kMaxShownWaits = 16;

// Returns ranks that wait for each other, each for the next one and the last
// for the first. A rank waits for one other, which has not come to the action
// in question, so it waits itself.
std::vector<int> FindCircle(const Schedule& schedule,
                            const Execution& execution) {
  int rank = 0;
  const auto ends = [&](int one) {
    return execution.place(one) ==
           static_cast<int>(schedule.of_rank()[one].size());
  };
  while (ends(rank)) ++rank;
  std::vector<int> path;
  std::vector<int> place_in_path(schedule.ranks(), -1);
  while (place_in_path[rank] < 0) {
    place_in_path[rank] = static_cast<int>(path.size());
    path.push_back(rank);
    rank = execution.NeedOf(rank).rank;
    COXSWAIN_CHECK(!ends(rank));
  }
  path.erase(path.begin(), path.begin() + place_in_path[rank]);
  // The same circle begins with the same rank, wherever it was entered.
  std::rotate(path.begin(), std::min_element(path.begin(), path.end()),
              path.end());
  return path;
}

std::string WaitText(const Schedule& schedule, const Execution& execution,
                     int rank) {
  const Action& action = schedule.of_rank()[rank][execution.place(rank)];
  const Execution::Need need = execution.NeedOf(rank);
  const Action& needed = schedule.of_rank()[need.rank][need.at];
  return absl::StrCat(
      "rank ", rank, " waits at ", ToString(action), " for rank ", need.rank,
      needed.micro_batch == action.micro_batch ? " to come to "
                                               : " to free a slot by ",
      ToString(needed));
}

absl::Status StoppedError(const Schedule& schedule,
                          const Execution& execution) {
  const std::vector<int> circle = FindCircle(schedule, execution);
  const int capacity = execution.capacity();
  std::string text = absl::StrCat(
      "it cannot run where a channel holds ",
      capacity == 0 ? std::string("no messages") : absl::StrCat(capacity),
      capacity == 0   ? ""
      : capacity == 1 ? " message"
                      : " messages",
      ": ", circle.size(), " ranks wait for each other");
  for (size_t i = 0; i < std::min(circle.size(), kMaxShownWaits); ++i) {
    absl::StrAppend(&text, "\n  ", WaitText(schedule, execution, circle[i]));
  }
  if (circle.size() > kMaxShownWaits) {
    absl::StrAppend(&text, "\n  and so on, ", circle.size() - kMaxShownWaits,
                    " more");
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace

absl::Status Prove(const Schedule& schedule, int capacity) {
  COXSWAIN_ASSIGN_OR_RETURN(Execution execution,
                            Execution::Create(schedule, capacity));
  execution.Run([](int /*rank*/, int /*at*/) {});
  return execution.AllEnd() ? absl::OkStatus()
                            : StoppedError(schedule, execution);
}

absl::StatusOr<int> LeastCapacity(const Schedule& schedule) {
  // A channel never has more messages than there are micro-batches. Most
  // schedules need one or none.
  const int most = schedule.micro_batches();
  int too_small = -1;
  int enough = 0;
  for (;;) {
    const absl::Status proved = Prove(schedule, enough);
    if (proved.ok()) break;
    if (enough == most) return proved;
    too_small = enough;
    enough = std::min(most, std::max(1, 2 * enough));
  }
  while (enough - too_small > 1) {
    const int middle = too_small + (enough - too_small) / 2;
    (Prove(schedule, middle).ok() ? enough : too_small) = middle;
  }
  return enough;
}

}  // namespace coxswain::pipeline
