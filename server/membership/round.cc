#include "server/membership/round.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace coxswain::server {
namespace {

// More names than this help nobody.
constexpr size_t kMaxNames = 16;

RoundVerdict DecideMismatch(absl::Time now, const RoundState& state,
                            const RoundOptions& options) {
  const std::string present = absl::StrCat(state.present.size(), " of ",
                                           options.max, " workers had joined");
  const bool complete =
      state.present.size() >= static_cast<size_t>(options.max);
  if (complete || now >= state.first_deadline ||
      now >= state.mismatch_since + options.mismatch_settle) {
    return {RoundDecision::kRefuse, present};
  }
  return {RoundDecision::kWait, present};
}

}  // namespace

std::string NameWorkers(const std::vector<WorkerIdentity>& workers) {
  if (workers.empty()) return "nobody";
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
  const int joined = static_cast<int>(state.present.size());
  if (state.mismatch_since < absl::InfiniteFuture()) {
    return DecideMismatch(now, state, options);
  }
  if (joined >= options.max) {
    return {RoundDecision::kClose,
            options.max == 1
                ? "the only worker has joined"
                : absl::StrCat("all ", options.max, " workers have joined")};
  }
  if (joined >= options.min && now >= state.last_arrival + options.last_call) {
    return {RoundDecision::kClose,
            absl::StrCat(joined, " workers have joined and no one else for ",
                         absl::FormatDuration(options.last_call))};
  }
  if (joined > 0 && now >= state.first_deadline) {
    return {RoundDecision::kExpire,
            absl::StrCat(joined, " of ", options.min,
                         " workers have joined: ", NameWorkers(state.present),
                         "; ", options.min - joined, " missing")};
  }
  return {RoundDecision::kWait,
          absl::StrCat("waiting for ", std::max(0, options.min - joined),
                       " of ", options.min, " workers")};
}

}  // namespace coxswain::server
