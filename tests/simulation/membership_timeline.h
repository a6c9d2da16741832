#ifndef COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_TIMELINE_H_
#define COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_TIMELINE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace coxswain::simulation {

// The time of a history, which jumps from one event to the next. Events of one
// moment happen in the order in which they were added.
class Timeline {
 public:
  absl::Time now() const { return now_; }
  int64_t handled() const { return handled_; }

  void In(absl::Duration delay, std::function<void()> event) {
    events_.push_back({now_ + delay, ++order_, std::move(event)});
    std::push_heap(events_.begin(), events_.end());
  }

  // Makes the next event happen. Returns false if there is none.
  bool Step() {
    if (events_.empty()) return false;
    std::pop_heap(events_.begin(), events_.end());
    const Event next = std::move(events_.back());
    events_.pop_back();
    now_ = next.at;
    ++handled_;
    next.happen();
    return true;
  }

 private:
  struct Event {
    absl::Time at;
    uint64_t order = 0;
    std::function<void()> happen;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  absl::Time now_ = absl::UnixEpoch();
  std::vector<Event> events_;  // a heap
  uint64_t order_ = 0;
  int64_t handled_ = 0;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_TIMELINE_H_
