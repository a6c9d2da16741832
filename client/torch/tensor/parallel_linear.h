#ifndef COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_LINEAR_H_
#define COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_LINEAR_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/tensor/parallel_layer.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::torch {

struct ParallelLinearOptions {
  int64_t in_features = 0;   // of the whole layer
  int64_t out_features = 0;  // of the whole layer
  bool bias = true;
  // Divided features stay together in units of so many, such as the features of
  // an attention head. The first ranks have one unit more where they do not
  // come out even.
  int64_t unit = 1;
};

// y = x A^T + b, of which each rank has some rows of A and elements of b, and
// computes these features of y, from all of x. Forward passes have no
// collective, backward ones an all-reduce of the gradient of x; with sequence
// parallelism they all-gather x, and reduce-scatter its gradient.
//
// "weight" [own outputs, in], "bias" [own outputs]: zeros until they are
// initialised (InitialiseByName) or loaded. Errors: see TensorParallel.
class ColumnParallelLinear : public ::torch::nn::Module, public ParallelLayer {
 public:
  // INVALID_ARGUMENT: features that the ranks cannot divide.
  static absl::StatusOr<std::shared_ptr<ColumnParallelLinear>> Create(
      const TensorParallelPtr& parallel, const ParallelLinearOptions& options);

  // [..., in] -> [..., own outputs].
  ::torch::Tensor forward(const ::torch::Tensor& input);

  // Which features of the whole output this rank computes.
  const EvenRange& outputs() const { return outputs_; }

 private:
  ColumnParallelLinear(TensorParallelPtr parallel,
                       const ParallelLinearOptions& options,
                       const EvenRange& outputs);

  const TensorParallelPtr parallel_;
  const int64_t in_features_;
  const EvenRange outputs_;
  ::torch::Tensor weight_;
  ::torch::Tensor bias_;
};

// y = x A^T + b, of which each rank has some columns of A, and these features
// of x, as a ColumnParallelLinear computes them. Forward passes all-reduce y,
// and add b after that; backward ones have no collective. With sequence
// parallelism y is reduce-scattered, and its gradient all-gathered; each rank
// then has a part of the gradient of b (SumSequenceGradients).
//
// "weight" [out, own inputs], "bias" [out], the same on all ranks: zeros until
// they are initialised or loaded. Errors: see TensorParallel.
class RowParallelLinear : public ::torch::nn::Module, public ParallelLayer {
 public:
  // INVALID_ARGUMENT: features that the ranks cannot divide.
  static absl::StatusOr<std::shared_ptr<RowParallelLinear>> Create(
      const TensorParallelPtr& parallel, const ParallelLinearOptions& options);

  // [..., own inputs] -> [..., out].
  ::torch::Tensor forward(const ::torch::Tensor& input);

  // Which features of the whole input this rank has.
  const EvenRange& inputs() const { return inputs_; }

 private:
  RowParallelLinear(TensorParallelPtr parallel,
                    const ParallelLinearOptions& options,
                    const EvenRange& inputs);

  const TensorParallelPtr parallel_;
  const int64_t out_features_;
  const EvenRange inputs_;
  ::torch::Tensor weight_;
  ::torch::Tensor bias_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_LINEAR_H_
