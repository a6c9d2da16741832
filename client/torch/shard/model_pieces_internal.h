#ifndef COXSWAIN_CLIENT_TORCH_SHARD_MODEL_PIECES_INTERNAL_H_
#define COXSWAIN_CLIENT_TORCH_SHARD_MODEL_PIECES_INTERNAL_H_

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/checkpoint/piece_checkpoint.h"
#include "client/shard/piece.h"
#include "client/torch/shard/model_pieces.h"

// Shared by the sources of model_pieces.h, and used nowhere else.

namespace coxswain::torch {

// Kinds of pieces.
inline constexpr char kTrained[] = "value";
// Of buffers and parameters that need no gradient.
inline constexpr char kUntrained[] = "untrained";
inline constexpr char kRate[] = "learning_rate";

// Returns the piece of the learning rates by the optimizer's groups: one that
// every rank has, so that one saves it.
TensorPiece GroupRates(size_t groups);

::torch::optim::Optimizer& OptionsOf(const ModelInPieces& model);

// Returns that of a parameter; null: it is in none.
const ::torch::optim::OptimizerParamGroup* GroupOf(
    const ::torch::optim::Optimizer& optimizer,
    const ::torch::Tensor& parameter);

// Loads what ProgramInPieces saves. `untrained`: bytes of SaveUntrained, of a
// program whose ranks all had the whole model; empty: the checkpoint has
// pieces.
absl::Status LoadPieces(const ModelInPieces& model, absl::string_view untrained,
                        PieceCheckpoint& from);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_SHARD_MODEL_PIECES_INTERNAL_H_
