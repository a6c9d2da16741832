#include "tests/simulation/membership_history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/dice.h"

namespace coxswain::simulation {
namespace {

constexpr int kLargeWorld = 1000;

}  // namespace

MembershipHistory MembershipHistory::Small(uint64_t seed) {
  MembershipHistory history;
  Dice dice(seed, 1);
  history.seed = seed;
  history.max = dice.Int(1, 8);
  history.min = dice.Chance(0.4) ? history.max : dice.Int(1, history.max);
  history.places = history.max;
  if (history.elastic()) history.places += dice.Int(0, 3);

  server::MembershipOptions& options = history.options;
  options.heartbeat_interval =
      dice.Chance(0.5) ? absl::Seconds(1) : absl::Seconds(2);
  options.lease = options.heartbeat_interval * dice.Int(3, 5);
  options.reattach_grace = absl::Seconds(dice.Int(2, 10));
  options.broken_peer_grace = absl::Seconds(1);
  options.last_call = absl::Seconds(dice.Int(1, 5));
  options.rejoin_grace = absl::Seconds(dice.Int(5, 20));
  options.survivor_timeout = absl::Seconds(dice.Int(10, 60));
  options.growth_settle = absl::Seconds(1);
  options.growth_min_age = absl::Seconds(dice.Int(1, 5));
  options.catch_up_timeout = absl::Seconds(Dice(seed, 4).Int(1, 30));
  if (dice.Chance(0.2)) options.max_spares_per_job = 1;
  history.join_timeout = absl::Seconds(dice.Int(10, 60));

  history.troubled = absl::Seconds(dice.Int(10, 90));
  history.troubles = dice.Int(0, 12);
  history.slowest_message = absl::Milliseconds(
      dice.Chance(0.3) ? dice.Int(100, 1500) : dice.Int(1, 50));
  history.slowest_write = absl::Milliseconds(
      dice.Chance(0.3) ? dice.Int(200, 3000) : dice.Int(1, 50));
  history.slowest_start = absl::Seconds(dice.Int(1, 15));
  history.slowest_abort = absl::Milliseconds(
      dice.Chance(0.3) ? dice.Int(1000, 20000) : dice.Int(1, 1000));
  history.slowest_call = absl::Milliseconds(dice.Chance(0.5) ? 0 : 20);
  if (dice.Chance(0.5)) history.lost = 0.1;
  if (dice.Chance(0.5)) history.doubled = 0.1;
  if (dice.Chance(0.3)) history.failing_writes = 0.15;
  history.unreported = dice.Chance(0.5) ? 0.5 : 0.1;
  if (dice.Chance(0.4)) history.other_launchers = 0.3;
  Dice stalls(seed, 3);
  if (stalls.Chance(0.4)) {
    history.stall_timeout = absl::Milliseconds(stalls.Int(500, 3000));
  }
  return history;
}

MembershipHistory MembershipHistory::Large(uint64_t seed) {
  MembershipHistory history = Small(seed);
  Dice dice(seed, 2);
  history.max = kLargeWorld;
  history.min = dice.Chance(0.5) ? kLargeWorld : kLargeWorld - 50;
  history.places = kLargeWorld;
  if (history.elastic()) history.places += 20;
  history.options.max_spares_per_job = 1024;
  history.options.heartbeat_interval = absl::Seconds(5);
  history.options.lease = absl::Seconds(15);
  history.options.reattach_grace = absl::Seconds(15);
  history.troubled = absl::Seconds(20);
  history.troubles = dice.Int(1, 4);
  history.failing_writes = 0;
  if (history.lost > 0) history.lost = 0.01;
  return history;
}

std::string MembershipHistory::Describe() const {
  return absl::StrCat(
      "history ", seed, ": ", min, " to ", max, " members in ", places,
      " places, lease ", absl::FormatDuration(options.lease), ", grace ",
      absl::FormatDuration(options.reattach_grace), ", stall timeout ",
      absl::FormatDuration(stall_timeout), ", survivor timeout ",
      absl::FormatDuration(options.survivor_timeout), ", timeout ",
      absl::FormatDuration(join_timeout), "; ", troubles, " troubles in ",
      absl::FormatDuration(troubled), ", messages up to ",
      absl::FormatDuration(slowest_message), ", writes up to ",
      absl::FormatDuration(slowest_write), ", starts up to ",
      absl::FormatDuration(slowest_start), ", aborts up to ",
      absl::FormatDuration(slowest_abort), ", lost ", lost, ", doubled ",
      doubled, ", failing writes ", failing_writes, ", unreported ", unreported,
      ", other launchers ", other_launchers);
}

}  // namespace coxswain::simulation
