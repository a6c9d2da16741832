#ifndef COXSWAIN_CLIENT_REDUCE_PLANNED_STEP_H_
#define COXSWAIN_CLIENT_REDUCE_PLANNED_STEP_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer.h"
#include "client/reduce/reducer_options.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"

namespace coxswain {

// What follows from a job's plan for a program that drives a Reducer by it. The
// averager may be null. Pure functions; the same on all ranks, but for the
// last.

// Fails with INVALID_ARGUMENT if the hook and the averager do not belong
// together, or ranks of unequal weights do not go with them.
absl::Status CheckAveragerFits(const schedule::Plan& plan, int world_size,
                               const Hook& hook, const Averager* averager);

// Fails with INVALID_ARGUMENT, naming a setting of the plan that contradicts
// the options, the hook or the averager. `skip_non_finite`: a step whose
// averages are not finite is skipped.
absl::Status CheckTermsFit(const schedule::Plan& plan,
                           const ReducerOptions& reducer, bool skip_non_finite,
                           const Hook& hook, const Averager* averager);

// Returns whether no rank meets another in the step of this ticket: its
// gradients stay its own, the averager does not join the ranks after it, and no
// setting of the plan needs all ranks there. `decided`: exchanges whose
// decision this rank has.
bool IsLocalStep(const schedule::Terms& terms, const schedule::Ticket& ticket,
                 int64_t decided, const Hook& hook, const Averager* averager);

// Returns why all ranks skip a finished step whose averages are not finite:
// names the gradients that the hook has found, or those of this rank, `rank`
// ("rank 1"), or else the averages for which `is_finite` returns false. Empty
// if there are none.
std::string WhyNotFinite(
    const Hook& hook, const Reducer& reducer, absl::string_view rank,
    const std::function<bool(size_t parameter)>& is_finite);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_PLANNED_STEP_H_
