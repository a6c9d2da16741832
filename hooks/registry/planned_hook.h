#ifndef COXSWAIN_HOOKS_REGISTRY_PLANNED_HOOK_H_
#define COXSWAIN_HOOKS_REGISTRY_PLANNED_HOOK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "schedule/plan.h"

namespace coxswain {

// Returns the spec that workers make their hook of: the plan's, and the step at
// which compression starts, if the plan has one. Fails with INVALID_ARGUMENT if
// the hook has no such step.
absl::StatusOr<std::string> PlannedSpec(const schedule::StepSettings& plan);

// Returns the hook that a job's plan asks for, which is what a worker trains
// with: the coordinator may have another spec than the worker's own flag, or
// another step at which compression starts. INVALID_ARGUMENT names
// the plan, and not a flag, as what makes no sense.
absl::StatusOr<std::unique_ptr<Hook>> MakePlannedHook(
    const schedule::Plan& plan);

// Returns what averages the parameters after the optimizer step, where the
// plan's hook brings such a part along; null if it does not. A program that
// trains with whatever hook a plan may name asks for both.
absl::StatusOr<std::unique_ptr<Averager>> MakePlannedAverager(
    const schedule::Plan& plan);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_REGISTRY_PLANNED_HOOK_H_
