#include "server/membership/liveness.h"

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

LivenessVerdict DecideLiveness(absl::Time now, const LivenessState& state,
                               const LivenessOptions& options) {
  if (!IsLive(state.state)) return {};
  if (state.state == MemberState::kDetached) {
    if (now < state.detached_at + options.reattach_grace) return {};
    return {true, absl::StrCat("its connection broke and did not come back "
                               "within ",
                               absl::FormatDuration(options.reattach_grace))};
  }
  if (now < state.last_sign + options.lease) return {};
  return {true, absl::StrCat(state.state == MemberState::kJoined
                                 ? "it joined but did not attach within "
                                 : "no sign of life for ",
                             absl::FormatDuration(options.lease))};
}

bool StoodStill(absl::Time now, absl::Time last_look, absl::Duration lease) {
  return now - last_look > lease / 2;
}

LivenessState WithPatience(absl::Time now, LivenessState state) {
  state.last_sign = now;
  state.detached_at = now;
  return state;
}

}  // namespace coxswain::server
