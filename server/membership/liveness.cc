#include "server/membership/liveness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace coxswain::server {

absl::string_view ToString(MemberState state) {
  switch (state) {
    case MemberState::kJoined:
      return "joined";
    case MemberState::kAttached:
      return "attached";
    case MemberState::kDetached:
      return "detached";
    case MemberState::kLeft:
      return "left";
    case MemberState::kLost:
      return "lost";
  }
  return "unknown";
}

bool IsLive(MemberState state) {
  return state == MemberState::kJoined || state == MemberState::kAttached ||
         state == MemberState::kDetached;
}

namespace {

LivenessVerdict DecideDetached(absl::Time now, const LivenessState& state,
                               const LivenessOptions& options) {
  const absl::Duration short_grace =
      std::min(options.reattach_grace, options.broken_peer_grace);
  const bool unreachable = state.attached_this_term &&
                           state.broken_at >= state.detached_at - short_grace;
  const absl::Duration grace =
      unreachable ? short_grace : options.reattach_grace;
  if (now < state.detached_at + grace) return {};
  return {true,
          absl::StrCat(unreachable
                           ? "its connections to the coordinator and to its "
                             "peers broke and did not come back within "
                           : "its connection broke and did not come back "
                             "within ",
                       absl::FormatDuration(grace))};
}

}  // namespace

LivenessVerdict DecideLiveness(absl::Time now, const LivenessState& state,
                               const LivenessOptions& options) {
  if (!IsLive(state.state)) return {};
  if (state.state == MemberState::kDetached) {
    return DecideDetached(now, state, options);
  }
  if (now < state.last_sign + options.lease) return {};
  return {true, absl::StrCat(state.state == MemberState::kJoined
                                 ? "it joined but did not attach within "
                                 : "no sign of life for ",
                             absl::FormatDuration(options.lease))};
}

bool WasPaused(absl::Time now, absl::Time last_look, absl::Duration lease) {
  return now - last_look > lease / 2;
}

LivenessState WithTimeoutsRestarted(absl::Time now, LivenessState state) {
  state.last_sign = now;
  state.detached_at = now;
  state.broken_at = absl::InfinitePast();
  return state;
}

}  // namespace coxswain::server
