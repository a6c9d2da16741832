#ifndef COXSWAIN_SCHEDULE_SIGN_INTERVAL_H_
#define COXSWAIN_SCHEDULE_SIGN_INTERVAL_H_

#include <algorithm>

#include "absl/time/time.h"

namespace coxswain::schedule {

// Of the signs of all survivors together: one in this time. Each is a call of
// its own, unlike a heartbeat.
inline constexpr absl::Duration kTimePerSign = absl::Microseconds(500);

// Returns how often a survivor of a generation with so many members shows that
// it lives until its Join is answered, where the plan has a stall_timeout: as
// often as its heartbeats came, or more rarely if it is one of many, which may
// all do so for minutes.
inline absl::Duration SignInterval(absl::Duration heartbeat_interval,
                                   int members) {
  return std::max(heartbeat_interval, members * kTimePerSign);
}

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_SIGN_INTERVAL_H_
