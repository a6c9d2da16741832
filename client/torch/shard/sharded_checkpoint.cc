#include "client/torch/shard/sharded_checkpoint.h"

#include "client/torch/shard/model_pieces.h"
#include "client/torch/shard/piece_forms.h"

namespace coxswain::torch {

absl::StatusOr<int64_t> CheckpointPieces::StepOf(const std::string& parameter,
                                                 const std::string& kind) {
  const auto name = names_.find(parameter);
  return from_.index().StepOf(name == names_.end() ? parameter : name->second,
                              kind);
}

absl::Status CheckpointPieces::Read(const TensorPiece& want, const Span& to) {
  TensorPiece saved = OfWhole(want, boxes_);
  const auto name = names_.find(want.parameter);
  if (name != names_.end()) saved.parameter = name->second;
  return from_.Load({{std::move(saved), static_cast<char*>(to.data)}});
}

ProgramCheckpoint::Program ProgramOf(
    const std::shared_ptr<::torch::nn::Module>& module,
    ShardedOptimizer* optimizer) {
  ModelInPieces model;
  model.module = module;
  model.sharded = optimizer;
  return ProgramInPieces([model] { return model; });
}

}  // namespace coxswain::torch
