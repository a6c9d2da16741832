#include "schedule/memory/configuration.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

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

absl::Status CheckTrainable(const Configuration& configuration) {
  if (configuration.mesh.has_free_axis()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mesh ", configuration.mesh.ToString(),
                     " leaves a size open: give each axis its size"));
  }
  const int zero = configuration.zero;
  if (zero < 0 || zero > 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "zero is 0, 1 (each rank keeps a slice of the optimizer's state) or 2 "
        "(and of the gradients), got ",
        zero, zero == 3 ? "; parameters stay whole on each rank" : ""));
  }
  if (configuration.mesh.extent("tp") > 1) {
    return absl::UnimplementedError(absl::StrCat(
        "the mesh ", configuration.mesh.ToString(),
        " divides layers along tp, and a model's description does not have "
        "which of its parameters are divided: leave tp out"));
  }
  const bool has_pipeline =
      configuration.mesh.extent("pp") > 1 || !configuration.pipeline.empty();
  COXSWAIN_RETURN_IF_ERROR(
      coxswain::CheckTrainable(configuration.mesh, has_pipeline));
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
  if (!has_pipeline) return absl::OkStatus();
  if (zero == 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "zero=2 with pp=", configuration.mesh.extent("pp"),
        ": a window's gradients are summed up whole on each rank until its "
        "last backward passes, so that it would save nothing; set zero=1"));
  }
  if (configuration.sync_each_batch) {
    return absl::InvalidArgumentError(
        "sync_each_batch with a pipeline: a window's micro-batches are "
        "exchanged together; set sync_each_batch=false");
  }
  return absl::OkStatus();
}

}  // namespace coxswain::memory
