#ifndef COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_CHECKPOINT_H_
#define COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_CHECKPOINT_H_

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/checkpoint/piece_checkpoint.h"
#include "client/resume/program_checkpoint.h"
#include "client/shard/piece.h"
#include "client/torch/shard/sharded_optimizer.h"

namespace coxswain::torch {

// Reads what a ShardedOptimizer wants from a checkpoint, which outlives it.
// `names`: those under which parameters were saved, where it is not their own;
// `boxes`: which part of the whole model's they are, by their own names.
class CheckpointPieces : public PieceReader {
 public:
  explicit CheckpointPieces(PieceCheckpoint& from,
                            std::map<std::string, std::string> names = {},
                            ParameterBoxes boxes = {})
      : from_(from), names_(std::move(names)), boxes_(std::move(boxes)) {}
  absl::StatusOr<int64_t> StepOf(const std::string& parameter,
                                 const std::string& kind) override;
  absl::Status Read(const TensorPiece& want, const Span& to) override;

 private:
  PieceCheckpoint& from_;
  const std::map<std::string, std::string> names_;
  const ParameterBoxes boxes_;
};

// Returns how a module with a sharded optimizer goes into a checkpoint and
// back, for ModuleCheckpoint: each rank saves the pieces that it keeps, and
// the lowest what all have alike (ProgramInPieces). Ranks of any number load
// it. The optimizer outlives it.
ProgramCheckpoint::Program ProgramOf(
    const std::shared_ptr<::torch::nn::Module>& module,
    ShardedOptimizer* optimizer);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_CHECKPOINT_H_
