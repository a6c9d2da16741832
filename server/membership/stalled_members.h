#ifndef COXSWAIN_SERVER_MEMBERSHIP_STALLED_MEMBERS_H_
#define COXSWAIN_SERVER_MEMBERSHIP_STALLED_MEMBERS_H_

#include <vector>

#include "absl/time/time.h"

namespace coxswain::server {

// One member of a generation, as the search for stalled ones sees it.
struct MemberSigns {
  bool live = true;  // it was not lost, and has not left for good
  // It waits in the join round of the next generation since `last_sign`, and
  // sends nothing meanwhile.
  bool rejoined = false;
  // Signs of it are to be expected: it has attached to this coordinator, or has
  // joined the generation here. One that another coordinator has left may not
  // have had the time to come back.
  bool expected = true;
  absl::Time last_sign;  // of life, whatever it was
  // What its last heartbeat reported, and when that came; before the first:
  // nothing, and infinitely long ago.
  absl::Time reported = absl::InfinitePast();
  absl::Duration waiting;   // for others, while nothing has moved
  absl::Duration interval;  // of its heartbeats
  // In a join round, of its signs of life; 0: they are heartbeats.
  absl::Duration sign_interval;
};

// How many heartbeats a member sends within the stall timeout.
inline constexpr int kHeartbeatsPerStall = 4;

// Returns how often the members of a job send heartbeats: as often as others,
// or as often as its stall timeout wants.
absl::Duration HeartbeatInterval(absl::Duration usual,
                                 absl::Duration stall_timeout);

// Returns the ranks, ascending, from which nothing has come for `timeout`,
// while all others wait: they have reported of late that they do, and that
// nothing moves, or are in the join round. Silence alone shows nothing where
// others compute, nor do waits where signs come from all. Silence counts from
// `looked_since` on: until then this coordinator may have stood still, or the
// generation ran. Empty also where all are silent, or one is yet to attach. A
// member whose signs come more rarely, since the timeout was set after its
// generation had begun or it is a survivor of many, has as many of its
// intervals.
std::vector<int> FindStalled(absl::Time now,
                             const std::vector<MemberSigns>& members,
                             absl::Duration timeout, absl::Time looked_since);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_STALLED_MEMBERS_H_
