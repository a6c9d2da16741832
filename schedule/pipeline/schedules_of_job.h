#ifndef COXSWAIN_SCHEDULE_PIPELINE_SCHEDULES_OF_JOB_H_
#define COXSWAIN_SCHEDULE_PIPELINE_SCHEDULES_OF_JOB_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "schedule/pipeline/action.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::pipeline {

// A schedule with its transfers, and where the other ends of these are: found
// once, so that no question about a rank reads its list.
class IndexedSchedule {
 public:
  explicit IndexedSchedule(Schedule schedule);

  const Schedule& schedule() const { return schedule_; }
  uint64_t hash() const { return hash_; }
  const Schedule::Actions& List(int list) const {
    return schedule_.of_rank()[static_cast<size_t>(list)];
  }
  // Returns the number of the list at the other end of a transfer.
  int OtherEnd(const Action& transfer) const;
  // Returns the place of what a receive receives in its sender's list; or that
  // of the receive of what a wait waits for.
  int PartnerOf(int list, int at) const {
    return partners_[static_cast<size_t>(list)][static_cast<size_t>(at)];
  }
  // Returns the place of the receive of a message so many before that of a
  // send; -1: there is none.
  int ReceiveBefore(int list, int at, int messages) const;
  // Returns what one who has come to this place has received: by list of a
  // sender, the place after that of the last such send.
  std::vector<std::pair<int, int>> SentTo(int list, int at) const;

 private:
  struct Receipt {
    int at = 0;
    int past = 0;  // in the sender's list
  };

  Schedule schedule_;
  uint64_t hash_;
  // By list and place: of a send its number among those of its channel.
  std::vector<std::vector<int>> partners_;
  std::vector<std::vector<int>> receives_;  // by channel
  // By list: by list of a sender, by place.
  std::vector<std::map<int, std::vector<Receipt>>> receipts_;
};

// The schedules that the ranks of a job run: one spec, with the micro-batches
// of the plan's window, or fewer in a short one; and for a while those of the
// plan before. Made when they are asked for.
class SchedulesOfJob {
 public:
  // So many at a time; and beside the plan's own, so many are made for one
  // explanation.
  static constexpr size_t kMaxKept = 4;
  static constexpr int kMaxMade = 1;
  // Of all lists; larger schedules are not made. One of twice this size took
  // 60 ms, on a virtual machine of two cores.
  static constexpr int64_t kMostActions = int64_t{1} << 17;

  // `window`: the micro-batches of a step.
  SchedulesOfJob(absl::string_view spec, int ranks, int window,
                 int64_t most_actions = kMostActions)
      : spec_(spec),
        ranks_(ranks),
        window_(window),
        most_(window),
        most_actions_(most_actions) {}

  // Another plan comes into force: ranks may be in a step of the one before
  // yet.
  void Use(absl::string_view spec, int window);
  // An explanation begins: pointers from before are not valid any more.
  void Begin();
  // Returns null where there is none of so many micro-batches and this hash, or
  // it is too large; hash 0: any.
  const IndexedSchedule* Of(int micro_batches, uint64_t hash = 0);
  // Returns that of a whole window; null if it is too large.
  const IndexedSchedule* OfWindow() { return Of(window_); }

  int ranks() const { return ranks_; }
  int window() const { return window_; }

 private:
  using Key = std::pair<std::string, int>;
  struct Kept {
    std::optional<IndexedSchedule> schedule;  // nothing: there is none
    int64_t used = 0;                         // in which explanation
  };

  const IndexedSchedule* Make(int micro_batches);

  std::string spec_;
  const int ranks_;
  int window_;
  int most_;  // of all plans
  const int64_t most_actions_;
  int64_t explanation_ = 0;
  int made_ = 0;
  std::map<Key, Kept> kept_;
};

// Returns how many actions MakeSchedule's schedule has, of all ranks; 0: there
// is none.
int64_t CountActions(absl::string_view spec, int ranks, int micro_batches);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_SCHEDULES_OF_JOB_H_
