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
};

struct LivenessOptions {
  absl::Duration lease;
  absl::Duration reattach_grace;
};

struct LivenessVerdict {
  bool lost = false;
  std::string reason;
};

// Whether a member must be given up by now. A lost connection alone starts a
// grace; silence on a living one is bounded by the lease.
LivenessVerdict DecideLiveness(absl::Time now, const LivenessState& state,
                               const LivenessOptions& options);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_LIVENESS_H_
