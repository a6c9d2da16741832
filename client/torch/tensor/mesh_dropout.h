#ifndef COXSWAIN_CLIENT_TORCH_TENSOR_MESH_DROPOUT_H_
#define COXSWAIN_CLIENT_TORCH_TENSOR_MESH_DROPOUT_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::torch {

// Where in the training a rank is. One for all dropout layers of a rank; the
// program sets it before each forward pass, and before it recomputes one.
struct DropoutPlace {
  uint64_t seed = 0;  // of the job
  int64_t step = 0;
  int64_t data_index = 0;
  int64_t micro_batch = 0;
};

// Which part of the whole activation a rank's one is: [begin, begin + its size)
// of `whole`, in dimension `dimension`.
struct ActivationPart {
  int64_t dimension = 0;
  int64_t begin = 0;
  int64_t whole = 0;
};

// Dropout whose masks are a function of the place, the layer's name and the
// index of each element in the whole activation: so that ranks that each have a
// part of it, or all of it, drop the same elements on any mesh, and a pass that
// is computed again drops them again. Keeps no state.
//
// In training mode zeroes each element with a probability and divides the
// others by what is left of 1; otherwise returns its input.
class MeshDropout : public ::torch::nn::Module {
 public:
  // `name` is the layer's in the whole model; no other one has it. `parallel`
  // may be null: activations are whole; so they are with one that has no
  // sequence parallelism, and otherwise this rank's part of the sequence.
  // INVALID_ARGUMENT: no probability, no name, no place.
  static absl::StatusOr<std::shared_ptr<MeshDropout>> Create(
      const std::string& name, double probability,
      std::shared_ptr<const DropoutPlace> place, TensorParallelPtr parallel);

  ::torch::Tensor forward(const ::torch::Tensor& input);
  // Of an activation that is divided otherwise, as by attention heads.
  ::torch::Tensor DropPart(const ::torch::Tensor& input,
                           const ActivationPart& part);

 private:
  MeshDropout(uint64_t name, double probability,
              std::shared_ptr<const DropoutPlace> place,
              TensorParallelPtr parallel);
  ::torch::Tensor Mask(const ::torch::Tensor& input,
                       const ActivationPart& part) const;

  const uint64_t name_;
  const double probability_;
  const std::shared_ptr<const DropoutPlace> place_;
  const TensorParallelPtr parallel_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TENSOR_MESH_DROPOUT_H_
