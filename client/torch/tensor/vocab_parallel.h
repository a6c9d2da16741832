#ifndef COXSWAIN_CLIENT_TORCH_TENSOR_VOCAB_PARALLEL_H_
#define COXSWAIN_CLIENT_TORCH_TENSOR_VOCAB_PARALLEL_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/torch/tensor/parallel_layer.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::torch {

// The rows of a table by index (torch.nn.Embedding), of which each rank has
// some: as many as the others, but that the first ranks have one more. Forward
// passes have one all-reduce, with sequence parallelism a reduce-scatter, to
// this rank's part of the sequence; backward ones none, or an all-gather.
//
// "weight" [own rows, features]: zeros until it is initialised or loaded. So
// has a ColumnParallelLinear of as many outputs without bias, whose outputs are
// logits for VocabParallelCrossEntropy; one may have the other's weight.
class VocabParallelEmbedding : public ::torch::nn::Module,
                               public ParallelLayer {
 public:
  // INVALID_ARGUMENT: fewer rows than ranks, or no features.
  static absl::StatusOr<std::shared_ptr<VocabParallelEmbedding>> Create(
      const TensorParallelPtr& parallel, int64_t vocabulary, int64_t features);

  // Tokens are int64, [..., sequence], from 0 and below the vocabulary; the
  // same on all ranks.
  ::torch::Tensor forward(const ::torch::Tensor& tokens);

  const ::torch::Tensor& weight() const { return weight_; }
  // Which rows this rank has.
  const EvenRange& rows() const { return rows_; }

 private:
  VocabParallelEmbedding(TensorParallelPtr parallel, int64_t vocabulary,
                         int64_t features, const EvenRange& rows);

  const TensorParallelPtr parallel_;
  const int64_t vocabulary_;
  const EvenRange rows_;
  ::torch::Tensor weight_;
};

// Returns the cross entropy of each target, in the shape of `targets`: zeros
// for those that are `ignore_index`, which count for nothing. A mean is
// therefore the program's: sum() / how many count.
//
// Logits are [..., own part of the vocabulary], divided like the rows of a
// VocabParallelEmbedding; targets int64 [...], the same on all ranks, of the
// whole sequence. Forward passes have two all-reduces, of one and of two
// numbers for each target; backward ones have none.
::torch::Tensor VocabParallelCrossEntropy(const ::torch::Tensor& logits,
                                          const ::torch::Tensor& targets,
                                          int64_t vocabulary,
                                          const TensorParallelPtr& parallel,
                                          int64_t ignore_index = -100);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TENSOR_VOCAB_PARALLEL_H_
