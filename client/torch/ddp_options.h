#ifndef COXSWAIN_CLIENT_TORCH_DDP_OPTIONS_H_
#define COXSWAIN_CLIENT_TORCH_DDP_OPTIONS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "client/torch/distributed_data_parallel.h"

namespace coxswain::torch {

// INVALID_ARGUMENT: options that do not go together, or not with the hook and
// the averager, which may be null.
absl::Status CheckOptions(const DistributedDataParallelOptions& options,
                          const Hook& hook, const Averager* averager);

// The options of DistributedDataParallel's own that must be equal on all ranks.
std::map<std::string, std::string> AgreedSettings(
    const DistributedDataParallelOptions& options);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DDP_OPTIONS_H_
