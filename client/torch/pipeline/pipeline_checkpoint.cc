#include "client/torch/pipeline/pipeline_checkpoint.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "client/torch/shard/model_pieces.h"

namespace coxswain::torch {

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
  return program;
}

}  // namespace coxswain::torch
