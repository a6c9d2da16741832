#include "client/reduce/hook_change.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/rank_values.h"
#include "client/reduce/hook_state.h"

namespace coxswain {
namespace {

// How many ranks could not change over, and how many of these because their
// hook has no LoadOwn.
struct Failures {
  int64_t all = 0;
  int64_t unimplemented = 0;
};

absl::StatusOr<Failures> Compare(const absl::Status& own,
                                 const HookChange& change) {
  const absl::StatusOr<std::vector<int64_t>> counts =
      ReduceValues(*change.communicator,
                   {own.ok() ? 0 : 1, absl::IsUnimplemented(own) ? 1 : 0},
                   ReduceOp::kSum, change.timeout);
  if (!counts.ok()) {
    return change.fail(WithPrefix("hook change: ", counts.status()));
  }
  return Failures{(*counts)[0], (*counts)[1]};
}

absl::Status CarryOwn(const Hook& hook, Hook& next) {
  COXSWAIN_ASSIGN_OR_RETURN(const HookState state, hook.SaveOwn());
  return next.LoadOwn(state, /*error_scale=*/1);
}

// `broken` is set if the ranks are apart.
absl::Status CarryMerged(Hook& hook, Hook& next, const HookChange& change,
                         bool* broken) {
  // Per element: errors of two kinds at up to 8 bytes, factors, and text.
  const int64_t limit = (64 << 20) + 32 * change.elements;
  absl::StatusOr<HookState> state =
      GatherHookState(hook, *change.communicator, limit, change.timeout);
  // Too large a state is refused on all ranks, before any of it travels.
  if (absl::IsResourceExhausted(state.status())) return state.status();
  if (!state.ok()) {
    *broken = true;
    return change.fail(WithPrefix("hook change: ", state.status()));
  }
  return next.LoadState(*state, change.communicator->rank(),
                        change.communicator->size());
}

}  // namespace

absl::Status ChangeOver(Hook& hook, Hook& next, const HookChange& change) {
  const int ranks = change.communicator->size();
  if (next.needs_averager()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the hook ", next.spec(),
        " needs its averager, which a change of hooks does not bring along; "
        "begin with it"));
  }
  absl::Status own = next.Configure(*change.parameters, ranks);
  if (own.ok() && change.carry_state) own = CarryOwn(hook, next);
  COXSWAIN_ASSIGN_OR_RETURN(Failures failures, Compare(own, change));
  if (failures.unimplemented == ranks) {
    bool broken = false;
    own = CarryMerged(hook, next, change, &broken);
    if (broken) return own;
    COXSWAIN_ASSIGN_OR_RETURN(failures, Compare(own, change));
  }
  COXSWAIN_RETURN_IF_ERROR(own);
  if (failures.all == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(failures.all, " other ranks of ", ranks,
                   " could not change over to the new hook; see their logs"));
}

}  // namespace coxswain
