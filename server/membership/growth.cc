#include "server/membership/growth.h"

#include <algorithm>

namespace coxswain::server {

absl::Duration GrowthAge(absl::Duration min_age, int in_vain) {
  constexpr int kMaxDoublings = 6;
  return min_age * (1 << std::clamp(in_vain, 0, kMaxDoublings));
}

bool HoldsUp(absl::Time now, std::optional<absl::Time> since,
             absl::Duration grace) {
  return since.has_value() && now >= *since + grace;
}

bool DecideGrowth(absl::Time now, const GrowthState& state,
                  const GrowthOptions& options) {
  if (state.spares == 0 || state.world_size >= options.max) return false;
  if (state.members_left) return false;
  if (now < state.began + options.min_age) return false;
  // A job that has room for no more need not wait for others.
  const bool full = state.world_size + state.spares >= options.max;
  return full || now >= state.last_arrival + options.settle;
}

}  // namespace coxswain::server
