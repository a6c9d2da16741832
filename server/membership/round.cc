#include "server/membership/round.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace coxswain::server {
namespace {

// The most names in a message.
constexpr size_t kMaxNames = 16;

RoundVerdict DecideMismatch(absl::Time now, const RoundState& state,
                            const RoundOptions& options) {
  const std::string present =
      absl::StrCat(state.present, " of ", options.max, " workers had joined");
  if (state.present >= options.max || now >= state.first_deadline ||
      now >= state.mismatch_since + options.mismatch_settle) {
    return {RoundDecision::kRefuse, present};
  }
  return {RoundDecision::kWait, present};
}

// Returns whether there are, or may be, workers whose place no other should
// take.
// Newcomers alone would begin anew, while the state is still there.
bool AwaitsSurvivors(absl::Time now, const RoundState& state,
                     const RoundOptions& options) {
  if (state.survivors_awaited == 0 || options.min == options.max) return false;
  if (state.survivors_present == 0) return now < state.survivors_until;
  return now < state.last_arrival + options.last_call;
}

// Returns whether no worker with the state is there, and one may come yet. The
// deadlines of those who wait for them do not count meanwhile: without the
// state they would begin anew, or fail for want of those who are on their way.
bool AwaitsTheState(absl::Time now, const RoundState& state,
                    const RoundOptions& options) {
  return state.survivors_present == 0 && AwaitsSurvivors(now, state, options);
}

std::string WorkersHaveJoined(int count) {
  return count == 1 ? "1 worker has joined"
                    : absl::StrCat(count, " workers have joined");
}

// With enough workers there: why the round closes; empty: it does not yet.
std::string WhyClose(absl::Time now, const RoundState& state,
                     const RoundOptions& options) {
  if (AwaitsSurvivors(now, state, options)) return "";
  if (state.present >= options.max) {
    return options.max == 1
               ? "the only worker has joined"
               : absl::StrCat("all ", options.max, " workers have joined");
  }
  if (state.survivors_present > 0 && state.survivors_awaited == 0) {
    return absl::StrCat("all ", state.survivors_present,
                        " survivors are back, ", state.present, " of at most ",
                        options.max, " workers");
  }
  if (now < state.last_arrival + options.last_call) return "";
  return absl::StrCat(WorkersHaveJoined(state.present), " and no one else for ",
                      absl::FormatDuration(options.last_call));
}

// With enough workers there, why the round is open yet.
std::string WhyWait(absl::Time now, const RoundState& state,
                    const RoundOptions& options) {
  return AwaitsSurvivors(now, state, options)
             ? absl::StrCat("waiting for ", state.survivors_awaited,
                            " of the last generation, who have the state")
             : "waiting for others who may come yet";
}

}  // namespace

std::string DescribeRound(absl::Time now, const RoundState& state,
                          const RoundOptions& options,
                          const std::map<int, WorkerIdentity>& awaited) {
  const RoundVerdict verdict = DecideRound(now, state, options);
  const bool agreed = state.mismatch_since == absl::InfiniteFuture();
  if (!agreed || awaited.empty() || !AwaitsSurvivors(now, state, options)) {
    return verdict.reason;
  }
  const auto& [rank, first] = *awaited.begin();
  const std::string others =
      awaited.size() == 1 ? ""
                          : absl::StrCat(" and ", awaited.size() - 1, " more");
  return absl::StrCat("waiting for rank ", rank, " (", first.ToString(), ")",
                      others, " of the last generation, which ",
                      others.empty() ? "has" : "have", " the state");
}

std::string NameWorkers(const std::vector<WorkerIdentity>& workers) {
  if (workers.empty()) return "no worker";
  std::string names;
  for (size_t i = 0; i < std::min(workers.size(), kMaxNames); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", workers[i].ToString());
  }
  if (workers.size() > kMaxNames) {
    absl::StrAppend(&names, " and ", workers.size() - kMaxNames, " more");
  }
  return names;
}

RoundVerdict DecideRound(absl::Time now, const RoundState& state,
                         const RoundOptions& options) {
  if (state.mismatch_since < absl::InfiniteFuture()) {
    return DecideMismatch(now, state, options);
  }
  const int missing = std::max(0, options.min - state.present);
  if (state.present > 0 && missing == 0) {
    std::string reason = WhyClose(now, state, options);
    if (!reason.empty()) return {RoundDecision::kClose, std::move(reason)};
  }
  const bool enough = state.present > 0 && missing == 0;
  if (state.present > 0 && now >= state.first_deadline &&
      !AwaitsTheState(now, state, options)) {
    return {RoundDecision::kExpire,
            enough
                ? absl::StrCat(WorkersHaveJoined(state.present), ", ",
                               WhyWait(now, state, options))
                : absl::StrCat(state.present, " of ", options.min,
                               " workers have joined; ", missing, " missing")};
  }
  if (enough) return {RoundDecision::kWait, WhyWait(now, state, options)};
  return {RoundDecision::kWait, absl::StrCat("waiting for ", missing, " of ",
                                             options.min, " workers")};
}

absl::Duration GrowthAge(absl::Duration min_age, int fruitless) {
  constexpr int kMaxDoublings = 6;
  return min_age * (1 << std::clamp(fruitless, 0, kMaxDoublings));
}

bool HoldsUp(absl::Time now, std::optional<absl::Time> since,
             absl::Duration grace) {
  return since.has_value() && now >= *since + grace;
}

GrowthDecision DecideGrowth(absl::Time now, const GrowthState& state,
                            const GrowthOptions& options) {
  if (state.spares == 0 || state.world_size >= options.max ||
      state.members_left) {
    return GrowthDecision::kWait;
  }
  // A job that has room for no more need not wait for others.
  const bool full = state.world_size + state.spares >= options.max;
  if (!full && now < state.last_arrival + options.settle) {
    return GrowthDecision::kWait;
  }
  if (now >= state.began + options.min_age) return GrowthDecision::kRegroup;
  return now >= state.began + options.catch_up_age ? GrowthDecision::kCatchUp
                                                   : GrowthDecision::kWait;
}

}  // namespace coxswain::server
