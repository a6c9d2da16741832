#ifndef COXSWAIN_SERVER_MEMBERSHIP_LIVENESS_H_
#define COXSWAIN_SERVER_MEMBERSHIP_LIVENESS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::server {

// The life of a member within one generation:
//
//   kJoined -> kAttached <-> kDetached      live
//      any of these -> kLeft                it sent Leave
//      any of these -> kLost                it died or stopped sending
enum class MemberState { kJoined, kAttached, kDetached, kLeft, kLost };

absl::string_view ToString(MemberState state);
bool IsLive(MemberState state);

struct LivenessState {
  MemberState state = MemberState::kJoined;
  absl::Time last_sign;    // join, attach, heartbeat or leave
  absl::Time detached_at;  // meaningful in kDetached
  // When a peer last reported that its data connection to it broke.
  absl::Time broken_at = absl::InfinitePast();
  // It has attached to this coordinator, which then lost the connection. One
  // that another coordinator lost may not have had the time to come back.
  bool attached_this_term = false;
};

struct LivenessOptions {
  absl::Duration lease;
  absl::Duration reattach_grace;
  // Instead, once a peer's data connection broke as well.
  absl::Duration broken_peer_grace = absl::InfiniteDuration();
};

struct LivenessVerdict {
  bool lost = false;
  std::string reason;
};

// Returns whether a member is to be declared lost. A lost connection alone
// starts a grace, a short one if peers cannot reach the member either; silence
// on an open one is bounded by the lease. A peer's report alone does not count,
// and expires after the short grace.
LivenessVerdict DecideLiveness(absl::Time now, const LivenessState& state,
                               const LivenessOptions& options);

// Returns whether this process itself was paused since its last Tick
// (suspended, or the clock jumped): it has received nothing meanwhile, and must
// not take that for the others' silence. Half a lease is far above the interval
// of Ticks, and a real loss is still noticed within one lease and a half.
bool WasPaused(absl::Time now, absl::Time last_look, absl::Duration lease);

// Returns the state with its lease and its grace restarted now. Drops what
// peers have reported before.
LivenessState WithTimeoutsRestarted(absl::Time now, LivenessState state);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_LIVENESS_H_
