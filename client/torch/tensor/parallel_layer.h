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
  // Returns how many numbers of each token its collectives sum up over the
  // ranks, in a forward and a backward pass together. Of each, 2 (t-1)/t leave
  // a rank of t, also where a sum is a reduce-scatter in one pass and an
  // all-gather in the other (sequence parallelism).
  int64_t summed_features() const { return summed_features_; }
  // Whether they are those of its inputs, whose gradients the backward pass
  // sums up; else of its outputs, which the forward pass does.
  bool sums_inputs() const { return sums_inputs_; }

 protected:
  ParallelLayer() = default;
  ParameterBoxes boxes_;
  int64_t summed_features_ = 0;
  bool sums_inputs_ = false;
};

// Returns the boxes of a module's divided parameters, by the names that they
// have in it.
ParameterBoxes BoxesOf(const ::torch::nn::Module& module);

// Returns the bytes of each token that collectives of a module's layers sum up
// in a forward and a backward pass: those of summed_features, in the types of
// the layers' parameters.
int64_t SummedBytes(const ::torch::nn::Module& module);
// Returns the bytes that they sum up once more where a backward pass comes in
// halves (TorchStage): that of the parameters goes through the module again, as
// far as to its first trained parameter. The module's parts compute in the
// order in which it has registered them. `sequence` is that of TensorParallel.
int64_t RepeatedBytes(const ::torch::nn::Module& module, bool sequence);

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
