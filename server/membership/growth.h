#ifndef COXSWAIN_SERVER_MEMBERSHIP_GROWTH_H_
#define COXSWAIN_SERVER_MEMBERSHIP_GROWTH_H_

#include <optional>

#include "absl/time/time.h"

namespace coxswain::server {

// Whether a running generation should make way for a larger one: a pure
// function. Each change costs the job a pause, so that workers that come one
// after the other are to be taken in together.

struct GrowthState {
  int world_size = 0;         // of the running generation
  int spares = 0;             // that wait for the next one
  absl::Time last_arrival;    // of a spare
  absl::Time began;           // the generation
  bool members_left = false;  // it ends already
};

struct GrowthOptions {
  int max = 1;
  absl::Duration settle;   // without another spare
  absl::Duration min_age;  // of the generation
};

// The age at which a generation may make way once this many that did so, one
// after the other, were followed by one with nobody new in it.
absl::Duration GrowthAge(absl::Duration min_age, int in_vain);

// Whether those that are still there hold up the others, of whom the first
// has made way at `since`, if any has.
bool HoldsUp(absl::Time now, std::optional<absl::Time> since,
             absl::Duration grace);

bool DecideGrowth(absl::Time now, const GrowthState& state,
                  const GrowthOptions& options);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_GROWTH_H_
