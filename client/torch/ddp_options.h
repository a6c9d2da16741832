#ifndef COXSWAIN_CLIENT_TORCH_DDP_OPTIONS_H_
#define COXSWAIN_CLIENT_TORCH_DDP_OPTIONS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "client/schedule/job_plan.h"
#include "client/torch/distributed_data_parallel_options.h"

namespace coxswain::torch {

// The plan that the job begins with.
JobPlan PlanOf(const DistributedDataParallelOptions& options);

// INVALID_ARGUMENT: options that do not go together, or not with the plan, the
// hook and the averager, which may be null.
absl::Status CheckPlan(const DistributedDataParallelOptions& options,
                       const JobPlan& plan, int world_size, const Hook& hook,
                       const Averager* averager);

// INVALID_ARGUMENT if the options ask for something else than the plan that
// they follow, where no operator has changed it: names both values.
absl::Status CheckAskedFor(const DistributedDataParallelOptions& options);

// INVALID_ARGUMENT if the program's make_hook makes another hook of its plan
// than `hook`, which would then be exchanged for it at some change of the plan.
absl::Status CheckPlannedHook(const DistributedDataParallelOptions& options,
                              const Hook& hook);

// The options of DistributedDataParallel's own that must be equal on all ranks.
std::map<std::string, std::string> AgreedSettings(
    const DistributedDataParallelOptions& options);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DDP_OPTIONS_H_
