#ifndef COXSWAIN_CLIENT_TORCH_MANIFEST_H_
#define COXSWAIN_CLIENT_TORCH_MANIFEST_H_

#include <torch/nn/module.h>

#include <string>

#include "absl/status/statusor.h"
#include "client/session/job.h"
#include "client/torch/distributed_data_parallel.h"

namespace coxswain::torch {

// What the workers that train `module` must have in common, for
// Session::Join: its parameters, the hook spec as it is given (pass what
// CanonicalSpec of hooks/registry/registry.h returns where it comes from a
// user), and the options that decide the order of collectives. INVALID_ARGUMENT
// names a parameter of an unsupported type.
absl::StatusOr<JobManifest> DescribeJob(
    const ::torch::nn::Module& module, const std::string& hook_spec,
    const DistributedDataParallelOptions& options = {});

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_MANIFEST_H_
