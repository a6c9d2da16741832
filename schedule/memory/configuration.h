#ifndef COXSWAIN_SCHEDULE_MEMORY_CONFIGURATION_H_
#define COXSWAIN_SCHEDULE_MEMORY_CONFIGURATION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mesh.h"

namespace coxswain::memory {

// How a model is trained; the words are those of the plan and of
// DistributedDataParallelOptions.
struct Configuration {
  Mesh mesh;  // without a free axis; empty: one rank
  int zero = 0;
  // Lets zero be 2 with a pipeline.
  bool force_zero = false;
  bool offload = false;
  int accumulation = 1;
  std::string pipeline;  // a spec; empty: 1f1b where the mesh has pp or tp
  // Which layers each stage has: see StageCut. "parameters", or empty: even.
  std::string stages;
  // Sequence parallelism, where the mesh has tp.
  bool sequence = false;
  // sgd, momentum (SGD with it), adam, adamw, rmsprop or adagrad.
  std::string optimizer = "adam";
  bool sync_each_batch = false;
  bool gradient_as_bucket_view = false;
  // Errors that the hook keeps for each element of the gradients.
  double hook_bytes = 0;
  int64_t bucket_bytes = int64_t{25} << 20;
};

// Whether a Pipeline trains it, as it does whatever has pp or tp.
bool HasPipeline(const Configuration& configuration);

// INVALID_ARGUMENT and UNIMPLEMENTED: nothing can be trained so, with the
// reason that training gives.
absl::Status CheckTrainable(const Configuration& configuration);

// What an optimizer keeps for each element, and how many tensors as large as
// the largest its step makes beside, as libtorch's do.
struct OptimizerCosts {
  int state = 0;
  int working = 0;
};

// INVALID_ARGUMENT: there is no such optimizer.
absl::StatusOr<OptimizerCosts> CostsOf(const std::string& optimizer);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_CONFIGURATION_H_
