#ifndef COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_LAYER_H_
#define COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_LAYER_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/shard/piece.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::torch {

using coxswain::ParameterBox;
using coxswain::ParameterBoxes;

// Implemented by modules that have a part of what their layer has in the whole
// model.
class ParallelLayer {
 public:
  virtual ~ParallelLayer() = default;
  // Returns the boxes of its own parameters, without those of its submodules.
  const ParameterBoxes& boxes() const { return boxes_; }

 protected:
  ParallelLayer() = default;
  ParameterBoxes boxes_;
};

// Returns the boxes of a module's divided parameters, by the names that they
// have in it.
ParameterBoxes BoxesOf(const ::torch::nn::Module& module);

// Returns which of `count` things this rank has: EvenRange. Fails with
// INVALID_ARGUMENT where it has none, naming the layer and what they are.
absl::StatusOr<EvenRange> RangeOfRank(absl::string_view layer, int64_t count,
                                      absl::string_view things,
                                      const TensorParallel& parallel);

// Returns whether the last dimension of an input is as the layer needs it.
// Otherwise fails `parallel`, naming the layer.
bool HasFeatures(absl::string_view layer, const ::torch::Tensor& input,
                 int64_t features, TensorParallel& parallel);

// Returns the sizes of a tensor with another last dimension.
std::vector<int64_t> WithFeatures(const ::torch::Tensor& input,
                                  int64_t features);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_LAYER_H_
