#ifndef COXSWAIN_SERVER_MEMBERSHIP_LIVENESS_H_
#define COXSWAIN_SERVER_MEMBERSHIP_LIVENESS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::server {

// The life of a member within one generation:
//
//   kJoined -> kAttached <-> kDetached      live
//      any of these -> kLeft                it said goodbye
//      any of these -> kLost                it died or fell silent
enum class MemberState { kJoined, kAttached, kDetached, kLeft, kLost };

absl::string_view ToString(MemberState state);
bool IsLive(MemberState state);

struct LivenessState {
  MemberState state = MemberState::kJoined;
  absl::Time last_sign;    // join, attach or heartbeat
  absl::Time detached_at;  // meaningful in kDetached
  // When a peer last said that its data connection to it broke.
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

// Whether a member must be given up by now. A lost connection alone starts a
// grace, a short one if peers cannot reach the member either; silence on a
// living one is bounded by the lease. What a peer says counts alone for
// nothing, and not for long: no longer than the short grace.
LivenessVerdict DecideLiveness(absl::Time now, const LivenessState& state,
                               const LivenessOptions& options);

// Whether this process itself stood still since it last looked (suspended,
// or the clock jumped): it then heard nobody, whoever spoke, and must not take
// that for the others' silence. Half a lease is far above the interval of the
// looks and leaves a real loss noticed within one lease and a half.
bool WasPaused(absl::Time now, absl::Time last_look, absl::Duration lease);

// The state with one lease, and one grace, of patience from now. What peers
// said before is forgotten.
LivenessState WithTimeoutsRestarted(absl::Time now, LivenessState state);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_LIVENESS_H_
