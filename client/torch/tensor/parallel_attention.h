#ifndef COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_ATTENTION_H_
#define COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_ATTENTION_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/tensor/mesh_dropout.h"
#include "client/torch/tensor/parallel_layer.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::torch {

struct ParallelAttentionOptions {
  int64_t features = 0;
  int64_t heads = 0;   // a divisor of the features
  bool causal = true;  // positions see none after them
  bool bias = true;
  // Of attention probabilities; null: none are dropped.
  std::shared_ptr<MeshDropout> dropout;
};

// Self-attention of which each rank computes some heads, as many as the others,
// but that the first ranks have one more. One collective each way at its
// beginning and one at its end, as of the two layers it consists of:
// - "qkv": a ColumnParallelLinear. Rows of its weight are ordered by head, then
//   by query, key and value; so those of a rank's heads lie together.
// - "out": a RowParallelLinear, by the same heads.
// Inputs are [batch, sequence, features]; with sequence parallelism this rank's
// part of the sequence. Errors: see TensorParallel.
class ParallelSelfAttention : public ::torch::nn::Module {
 public:
  // INVALID_ARGUMENT: fewer heads than ranks, or features that they do not
  // divide.
  static absl::StatusOr<std::shared_ptr<ParallelSelfAttention>> Create(
      const TensorParallelPtr& parallel,
      const ParallelAttentionOptions& options);

  ::torch::Tensor forward(const ::torch::Tensor& input);

  // Which heads this rank computes.
  const EvenRange& heads() const { return heads_; }

 private:
  ParallelSelfAttention(TensorParallelPtr parallel,
                        const ParallelAttentionOptions& options,
                        const EvenRange& heads,
                        std::shared_ptr<ColumnParallelLinear> qkv,
                        std::shared_ptr<RowParallelLinear> out);

  const TensorParallelPtr parallel_;
  const ParallelAttentionOptions options_;
  const EvenRange heads_;
  std::shared_ptr<ColumnParallelLinear> qkv_;
  std::shared_ptr<RowParallelLinear> out_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TENSOR_PARALLEL_ATTENTION_H_
