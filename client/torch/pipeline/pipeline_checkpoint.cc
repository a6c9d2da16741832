#include "client/torch/pipeline/pipeline_checkpoint.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/torch/module_tensors.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "client/torch/shard/model_pieces.h"

namespace coxswain::torch {
namespace {

constexpr char kLossScale[] = ".loss_scale";

// Returns the boxes of what the rank's module has: of a tie within a rank there
// is the first name only.
ParameterBoxes BoxesOf(const Pipeline& pipeline) {
  ParameterBoxes boxes;
  for (const NamedTensor& named : TensorsOf(*pipeline.module())) {
    const auto divided = pipeline.boxes().find(named.name);
    if (divided != pipeline.boxes().end()) boxes.insert(*divided);
  }
  return boxes;
}

}  // namespace

ProgramCheckpoint::Program ProgramOf(Pipeline& pipeline) {
  auto program =
      ProgramInPieces([&pipeline]() -> absl::StatusOr<ModelInPieces> {
        if (pipeline.optimizer() == nullptr) {
          return absl::FailedPreconditionError(
              "a checkpoint of a pipeline without an optimizer: call "
              "UseOptimizer first");
        }
        ModelInPieces model;
        model.module = pipeline.module();
        model.sharded = pipeline.sharded();
        if (model.sharded == nullptr) model.optimizer = pipeline.optimizer();
        model.replica = pipeline.data_index();
        model.replicas = pipeline.data_ranks();
        model.boxes = BoxesOf(pipeline);
        model.part = pipeline.tensor_index();
        model.parts = pipeline.tensor_ranks();
        model.whole =
            [&pipeline]() -> absl::StatusOr<std::vector<ParameterSpec>> {
          COXSWAIN_ASSIGN_OR_RETURN(PipelineDescription described,
                                    Describe(pipeline.model()));
          return std::move(described.parameters);
        };
        for (const Tie& tie : pipeline.model().ties) {
          model.ties[tie.first] = tie.second;
          model.ties[tie.second] = tie.first;
        }
        return model;
      });
  program.hook_parts = pipeline.LayersByRank();
  program.boxes = BoxesOf(pipeline);
  if (pipeline.loss_scale() != nullptr) {
    program.items[kLossScale] = {
        [&pipeline] { return pipeline.loss_scale()->Save(); },
        [&pipeline](absl::string_view saved) {
          return pipeline.LoadLossScale(saved);
        }};
  }
  return program;
}

}  // namespace coxswain::torch
