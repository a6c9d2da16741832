// What a step leaves besides gradients: reports, the hooks' states, buffers.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/property/step_oracle.h"

namespace coxswain::property {

std::string StepOracle::Statistics() const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const StepReport& report = ranks_[rank]->report;
    double weights = 0;
    int live = 0;
    for (const RankStep* one : ranks_) {
      weights += one->weight;
      live += one->weight > 0 ? 1 : 0;
    }
    if (report.live_ranks != live || report.total_weight != weights) {
      return absl::StrCat("rank ", rank, " reports ", report.live_ranks,
                          " live ranks of weight ", report.total_weight,
                          ", there are ", live, " of ", weights);
    }
    if (!case_.statistics && case_.max_norm == 0) continue;
    const double norm = report.gradient_norm;
    const double ought = expectation_.NormOf(rank);
    if (expectation_.exact() && std::fabs(norm - ought) > 1e-12 * ought) {
      return absl::StrCat("rank ", rank, " reports the norm ", norm, ", not ",
                          ought);
    }
    // As PyTorch, which adds 1e-6 to the norm.
    const double scale =
        case_.max_norm > 0 ? std::min(1.0, case_.max_norm / (norm + 1e-6)) : 1;
    if (std::fabs(report.clip_scale - scale) > 1e-12) {
      return absl::StrCat("rank ", rank, " clips by ", report.clip_scale,
                          ", not ", scale);
    }
  }
  return "";
}

std::string StepOracle::State(bool applied) const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankStep& own = *ranks_[rank];
    const std::string who = absl::StrCat("rank ", rank, ": ");
    const int64_t steps = own.state_after.step - own.state_before.step;
    if (steps != (applied ? 1 : 0)) {
      return absl::StrCat(who, "the hook counted ", steps, " steps");
    }
    if (applied) continue;
    if (SamePartsOf(own.state_after.alone) !=
        SamePartsOf(own.state_before.alone)) {
      return who + "a dropped step has changed the hook's state";
    }
  }
  return "";
}

// What a dropped step may not change, as text: errors, of which one that is
// zero may be there or not, and factors, unless they belong to buckets.
std::string StepOracle::SamePartsOf(const HookState& alone) const {
  std::string text;
  for (const auto& values : MeanError(alone, first().parameters, 1)) {
    absl::StrAppend(&text, absl::StrJoin(values, " "), "\n");
  }
  if (expectation_.meaning().kind == Meaning::Kind::kFeedback) return text;
  for (const StateTensor& tensor : alone.tensors) {
    if (tensor.kind == "error") continue;
    absl::StrAppend(&text, tensor.kind, " ", tensor.parameter, tensor.data);
  }
  return text;
}

std::string StepOracle::Conservation(const StepCase& step) const {
  if (expectation_.exact() || !expectation_.meaning().conserves()) return "";
  if (step.ending == Ending::kDropped || case_.overlapped) return "";
  auto brought = expectation_.MeanErrorOf(/*after=*/false);
  AddTo(brought, MeanOver(expectation_.given()));
  const auto kept = expectation_.MeanErrorOf(/*after=*/true);
  for (size_t slot = 0; slot < brought.size(); ++slot) {
    const auto number = static_cast<size_t>(first().numbers[slot]);
    if (Untouched(number)) continue;  // what was sent is not to be seen
    double off = 0;
    for (size_t i = 0; i < brought[slot].size(); ++i) {
      const double sent =
          first().after[number].values[i] / first().report.clip_scale;
      const double lost = brought[slot][i] - kept[slot][i] - sent;
      off += lost * lost;
    }
    const double allowed = expectation_.ConservationTolerance(slot);
    if (std::sqrt(off) <= allowed) continue;
    return absl::StrCat(On(0, number), "of what was brought, ", std::sqrt(off),
                        " was neither sent nor kept; allowed is ", allowed);
  }
  return "";
}

std::string StepOracle::Buffers() const {
  if (!case_.buffers) return "";
  // Ranks that keep gradients of their own keep their buffers.
  const bool own = expectation_.meaning().kind == Meaning::Kind::kLocal;
  size_t source = 0;
  while (ranks_[source]->weight == 0) ++source;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Elements& ought =
        ranks_[case_.broadcast_buffers && !own ? source : rank]->buffer_set;
    if (Same(ranks_[rank]->buffer, ought)) continue;
    return absl::StrCat("rank ", rank, ": ",
                        Differ("the buffer", ranks_[rank]->buffer, ought));
  }
  return "";
}

}  // namespace coxswain::property
