#include "server/membership/stalled_members.h"

#include <algorithm>

namespace coxswain::server {
namespace {

// Of the timeout, how long the others are to have waited: they report it some
// heartbeats later than it began.
constexpr int kWaitPart = 2;
// A report counts for so many intervals.
constexpr int kFreshIntervals = 2;

bool IsSilent(absl::Time now, const MemberSigns& member, absl::Duration timeout,
              absl::Time looked_since) {
  const absl::Duration least =
      std::max(timeout, kHeartbeatsPerStall *
                            std::max(member.interval, member.sign_interval));
  return now - std::max(member.last_sign, looked_since) >= least;
}

bool Waits(absl::Time now, const MemberSigns& member, absl::Duration timeout) {
  if (member.rejoined) return now - member.last_sign >= timeout / kWaitPart;
  const absl::Duration age = now - member.reported;
  return member.waiting >= timeout / kWaitPart &&
         age <= kFreshIntervals * member.interval;
}

}  // namespace

absl::Duration HeartbeatInterval(absl::Duration usual,
                                 absl::Duration stall_timeout) {
  return std::min(usual, stall_timeout / kHeartbeatsPerStall);
}

std::vector<int> FindStalled(absl::Time now,
                             const std::vector<MemberSigns>& members,
                             absl::Duration timeout, absl::Time looked_since) {
  std::vector<int> silent;
  bool waited_for = false;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const MemberSigns& member = members[rank];
    if (!member.live) continue;
    if (!member.expected) return {};
    if (!member.rejoined && IsSilent(now, member, timeout, looked_since)) {
      silent.push_back(static_cast<int>(rank));
    } else if (Waits(now, member, timeout)) {
      waited_for = true;
    } else {
      return {};
    }
  }
  if (!waited_for) silent.clear();
  return silent;
}

}  // namespace coxswain::server
