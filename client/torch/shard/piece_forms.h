#ifndef COXSWAIN_CLIENT_TORCH_SHARD_PIECE_FORMS_H_
#define COXSWAIN_CLIENT_TORCH_SHARD_PIECE_FORMS_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <string>

#include "absl/status/status.h"
#include "client/shard/piece.h"

// Which pieces of the whole model the tensors of a rank's module are. For the
// files of this folder.

namespace coxswain::torch {

// Returns the piece that all of a tensor is: of its box, if it is one of the
// divided ones. One of another type than pieces have is described as bytes.
TensorPiece PieceOf(const std::string& name, const std::string& kind,
                    const ::torch::Tensor& tensor, const ParameterBoxes& boxes);

// Returns what a piece of a rank's parameter is of the whole parameter.
TensorPiece OfWhole(TensorPiece piece, const ParameterBoxes& boxes);

// Fails with INVALID_ARGUMENT, naming it, for a box that is of no tensor of the
// module, of another shape than that has, or not within its whole.
absl::Status CheckBoxes(const ::torch::nn::Module& module,
                        const ParameterBoxes& boxes);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_SHARD_PIECE_FORMS_H_
