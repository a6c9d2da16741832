#include "schedule/memory/configuration.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/memory/zero_limits.h"

namespace coxswain::memory {

absl::StatusOr<OptimizerCosts> CostsOf(const std::string& optimizer) {
  static const auto* const costs = new std::map<std::string, OptimizerCosts>{
      {"sgd", {0, 0}},   {"momentum", {1, 0}}, {"adam", {2, 2}},
      {"adamw", {2, 2}}, {"rmsprop", {1, 1}},  {"adagrad", {1, 1}}};
  const auto found = costs->find(optimizer);
  if (found != costs->end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no optimizer \"", optimizer,
                   "\": sgd, momentum, adam, adamw, rmsprop and adagrad are "
                   "known"));
}

bool HasPipeline(const Configuration& configuration) {
  return configuration.mesh.extent("pp") > 1 ||
         configuration.mesh.extent("tp") > 1 || !configuration.pipeline.empty();
}

absl::Status CheckTrainable(const Configuration& configuration) {
  if (configuration.mesh.has_free_axis()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mesh ", configuration.mesh.ToString(),
                     " leaves a size open: give each axis its size"));
  }
  const int zero = configuration.zero;
  COXSWAIN_RETURN_IF_ERROR(CheckZeroStage(zero));
  COXSWAIN_RETURN_IF_ERROR(
      coxswain::CheckTrainable(configuration.mesh, HasPipeline(configuration)));
  if (configuration.accumulation < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "accumulation is 1 or more, got ", configuration.accumulation));
  }
  if (configuration.offload && zero == 0) {
    return absl::InvalidArgumentError(
        "offload keeps what zero leaves a rank of the optimizer's state in the "
        "host's memory, and zero=0 shards none; set zero to 1, or leave it "
        "out");
  }
  if (configuration.offload && zero == 2) {
    return absl::InvalidArgumentError(
        "offload is for models on a GPU, where zero is 1; set zero to 1");
  }
  if (configuration.sequence && configuration.mesh.extent("tp") == 1) {
    return absl::InvalidArgumentError(
        "sequence divides activations among the ranks along tp, and the mesh "
        "has none: give it tp, or leave sequence out");
  }
  if (HasPipeline(configuration) && configuration.sync_each_batch) {
    return absl::InvalidArgumentError(
        "sync_each_batch with a pipeline: a window's micro-batches are "
        "exchanged together; set sync_each_batch=false");
  }
  return absl::OkStatus();
}

}  // namespace coxswain::memory
