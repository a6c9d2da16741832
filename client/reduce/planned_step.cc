#include "client/reduce/planned_step.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

absl::Status CheckHasAverager(const Hook& hook, const Averager* averager) {
  if (!hook.needs_averager()) return absl::OkStatus();
  if (averager == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the hook ", hook.spec(),
        " leaves the ranks' parameters apart and needs its averager: pass what "
        "MakePlannedAverager or MakeAverager gives for the same spec, and call "
        "AfterOptimizerStep after each optimizer step"));
  }
  if (!absl::StrContains(hook.spec(), averager->spec())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the averager ", averager->spec(), " is not that of the hook ",
        hook.spec(), "; make both from one spec"));
  }
  return absl::OkStatus();
}

bool Averages(const Hook& hook, const Averager* averager) {
  return averager != nullptr || hook.needs_averager();
}

absl::Status CheckUnevenInputs(const schedule::Plan& plan, int world_size,
                               const Hook& hook, const Averager* averager) {
  if (!plan.needs_header(world_size) || !Averages(hook, averager)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "uneven_inputs does not go with the hook ", hook.spec(),
      " and its averager (nor do uneven_data, weighting=samples|tokens, and a "
      "global batch that the ranks do not share equally): while ranks step on "
      "their own, one that is out of data would be averaged in with parameters "
      "that no longer learn; give all ranks equally much data, or take a hook "
      "that averages gradients"));
}

absl::Status NoPair(absl::string_view one, absl::string_view other,
                    absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      one, " does not go with ", other, ": ", why, "; leave one of them out"));
}

absl::Status CheckSyncEachBatch(const schedule::Plan& plan,
                                const ReducerOptions& reducer, const Hook& hook,
                                const Averager* averager) {
  if (!plan.terms.sync_each_batch) return absl::OkStatus();
  if (Averages(hook, averager)) {
    return NoPair("sync_each_batch", absl::StrCat("the hook ", hook.spec()),
                  "it counts exchanges, and its averager optimizer steps");
  }
  if (reducer.max_norm > 0) {
    return NoPair("sync_each_batch", "max_norm",
                  "each micro-batch would be clipped by itself; clip the "
                  "sum before the optimizer step");
  }
  return absl::OkStatus();
}

absl::Status CheckSkips(const schedule::Plan& plan,
                        const ReducerOptions& reducer, bool skip_non_finite,
                        const Hook& hook, const Averager* averager) {
  const bool compares = plan.terms.commit_vote || plan.terms.checksum_every > 0;
  if (reducer.gate == nullptr && compares) {
    return absl::InvalidArgumentError(
        "commit_vote and checksum_every need the coordinator: set a gate (see "
        "FollowSession)");
  }
  const bool apart =
      Averages(hook, averager) || hook.reach() == GradientReach::kOwn;
  const bool stages = reducer.counts_in_norm.has_value();
  if (skip_non_finite && apart && !plan.terms.commit_vote) {
    return absl::InvalidArgumentError(absl::StrCat(
        "skip_non_finite with the hook ", hook.spec(),
        " needs the plan's commit_vote, since each rank sees averages of its "
        "own"));
  }
  if (skip_non_finite && stages && !plan.terms.commit_vote) {
    return absl::InvalidArgumentError(
        "skip_non_finite with stages of a pipeline needs the plan's "
        "commit_vote, since each stage sees the averages of its own "
        "parameters");
  }
  if (stages && apart && reducer.max_norm > 0) {
    return NoPair("max_norm over the stages of a pipeline",
                  absl::StrCat("the hook ", hook.spec()),
                  "the ranks that have the same stage step by gradients of "
                  "their own, so that there is no one norm");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAveragerFits(const schedule::Plan& plan, int world_size,
                               const Hook& hook, const Averager* averager) {
  COXSWAIN_RETURN_IF_ERROR(CheckHasAverager(hook, averager));
  return CheckUnevenInputs(plan, world_size, hook, averager);
}

absl::Status CheckTermsFit(const schedule::Plan& plan,
                           const ReducerOptions& reducer, bool skip_non_finite,
                           const Hook& hook, const Averager* averager) {
  COXSWAIN_RETURN_IF_ERROR(CheckSyncEachBatch(plan, reducer, hook, averager));
  return CheckSkips(plan, reducer, skip_non_finite, hook, averager);
}

bool IsLocalStep(const schedule::Terms& terms, const schedule::Ticket& ticket,
                 int64_t decided, const Hook& hook, const Averager* averager) {
  if (averager == nullptr || averager->unites_next() ||
      hook.reach() != GradientReach::kOwn) {
    return false;
  }
  // In the first one the ranks find out whether they do the same.
  if (decided == 0 || ticket.checksum) return false;
  const int64_t steps = ticket.step + 1;
  if (terms.max_steps > 0 && steps >= terms.max_steps) return false;
  return terms.checkpoint_every <= 0 || steps % terms.checkpoint_every != 0;
}

std::string WhyNotFinite(
    const Hook& hook, const Reducer& reducer, absl::string_view rank,
    const std::function<bool(size_t parameter)>& is_finite) {
  constexpr size_t kNamed = 4;
  std::vector<std::string> found;
  for (const NonFiniteGradient& gradient : hook.non_finite()) {
    if (found.size() == kNamed) break;
    found.push_back(absl::StrCat("the gradient of \"", gradient.parameter,
                                 "\" on rank ", gradient.rank));
  }
  const std::vector<ParameterSpec>& parameters = reducer.parameters();
  if (found.empty()) {
    for (const int parameter : reducer.own_non_finite()) {
      if (found.size() == kNamed) break;
      const auto index = static_cast<size_t>(parameter);
      found.push_back(absl::StrCat("the gradient of \"", parameters[index].name,
                                   "\" on ", rank));
    }
  }
  if (!found.empty()) {
    return absl::StrCat("not finite: ", absl::StrJoin(found, ", "));
  }
  const int64_t elements = reducer.report().non_finite;
  if (elements == 0) return "";
  for (size_t i = 0; i < parameters.size() && found.size() < kNamed; ++i) {
    if (is_finite(i)) continue;
    found.push_back(absl::StrCat("\"", parameters[i].name, "\""));
  }
  const std::string averages = absl::StrCat(
      "the averages of ",
      found.empty() ? "other ranks' slices" : absl::StrJoin(found, ", "));
  // The same words on all replicas, so that the rank where it comes from is not
  // lost among them.
  if (reducer.finds_non_finite()) {
    return absl::StrCat("not finite: ", averages);
  }
  return absl::StrCat("not finite: ", elements, " elements of ", averages,
                      ", as ", rank, " sees them");
}

}  // namespace coxswain
