#ifndef COXSWAIN_CLIENT_TORCH_TENSOR_TENSOR_RANKS_H_
#define COXSWAIN_CLIENT_TORCH_TENSOR_TENSOR_RANKS_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/comm/communicator.h"
#include "client/comm/held/held_communicator.h"
#include "client/torch/tensor/mesh_dropout.h"
#include "client/torch/tensor/parallel_attention.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/tensor/tensor_parallel.h"
#include "client/torch/tensor/vocab_parallel.h"

namespace coxswain::torch {

// For the tests of this folder.

constexpr double kTolerance = 1e-12;
constexpr uint64_t kSeed = 17;

// A rank, in a thread of its own. Nothing is held; what is launched is counted.
struct TensorRank {
  int index = 0;
  int size = 1;
  HeldCommunicator* communicator = nullptr;
  TensorParallelPtr parallel;
};
void OnTensorRanks(int size, bool sequence,
                   const std::function<void(const TensorRank&)>& body);
// On the ranks of a group that is connected.
void OnTensorRanks(std::vector<std::unique_ptr<Communicator>> group,
                   bool sequence,
                   const std::function<void(const TensorRank&)>& body);

// Returns how many collectives of a kind have been launched.
int64_t CountOf(const TensorRank& rank, const std::string& kind);

// Returns numbers that look random, the same for the same sizes and salt.
::torch::Tensor Numbers(at::IntArrayRef sizes, uint64_t salt);

// Returns this rank's part of an activation [..., sequence, features], where
// the ranks divide the sequence; otherwise all of it.
::torch::Tensor OwnSequence(const ::torch::Tensor& whole,
                            const TensorRank& rank);

// Converts to float64 and initialises.
void Prepare(::torch::nn::Module& module);

// Expects that each gradient of `module` is its box of the gradient that the
// parameter of this name has in `dense`.
void ExpectGradientsOf(const ::torch::nn::Module& dense,
                       const ::torch::nn::Module& module);
void ExpectNear(const ::torch::Tensor& actual, const ::torch::Tensor& expected);

// Attention and blocks without anything of this folder, for comparison. Their
// parameters have the same names.
struct DenseAttention : ::torch::nn::Module {
  DenseAttention(int64_t features, int64_t heads,
                 std::shared_ptr<MeshDropout> dropout);
  ::torch::Tensor forward(const ::torch::Tensor& input);
  const int64_t heads_;
  ::torch::nn::Linear qkv_{nullptr}, out_{nullptr};
  std::shared_ptr<MeshDropout> dropout_;
};

// What models for tests have in common.
struct GptSizes {
  int64_t vocabulary = 101;
  int64_t length = 12;
  int64_t features = 24;
  int64_t heads = 4;
  int64_t inner = 50;  // of the feed-forward part
  double dropout = 0.1;
};

struct DenseBlock : ::torch::nn::Module {
  DenseBlock(const GptSizes& sizes,
             const std::shared_ptr<const DropoutPlace>& place);
  ::torch::Tensor forward(::torch::Tensor x);
  ::torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  std::shared_ptr<DenseAttention> attention_;
  ::torch::nn::Linear up_{nullptr}, down_{nullptr};
  std::shared_ptr<MeshDropout> dropout_;
};

struct ParallelBlock : ::torch::nn::Module {
  ParallelBlock(const GptSizes& sizes,
                const std::shared_ptr<const DropoutPlace>& place,
                const TensorParallelPtr& parallel);
  ::torch::Tensor forward(::torch::Tensor x);
  ::torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  std::shared_ptr<ParallelSelfAttention> attention_;
  std::shared_ptr<ColumnParallelLinear> up_;
  std::shared_ptr<RowParallelLinear> down_;
  std::shared_ptr<MeshDropout> dropout_;
};

// An embedding, positions, a block, a norm, and a head that is the embedding.
// Return the losses of the targets.
struct DenseGpt : ::torch::nn::Module {
  DenseGpt(const GptSizes& sizes,
           const std::shared_ptr<const DropoutPlace>& place);
  ::torch::Tensor forward(const ::torch::Tensor& tokens,
                          const ::torch::Tensor& targets);
  ::torch::nn::Embedding embedding_{nullptr};
  ::torch::Tensor positions_;
  std::shared_ptr<DenseBlock> block_;
  ::torch::nn::LayerNorm norm_{nullptr};
};

struct ParallelGpt : ::torch::nn::Module {
  ParallelGpt(const GptSizes& sizes,
              const std::shared_ptr<const DropoutPlace>& place,
              const TensorRank& rank);
  ::torch::Tensor forward(const ::torch::Tensor& tokens,
                          const ::torch::Tensor& targets);
  // Returns the parameters that all ranks have.
  std::vector<::torch::Tensor> Replicated();
  const GptSizes sizes_;
  const TensorRank rank_;
  std::shared_ptr<VocabParallelEmbedding> embedding_;
  ::torch::Tensor positions_;
  std::shared_ptr<ParallelBlock> block_;
  ::torch::nn::LayerNorm norm_{nullptr};
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TENSOR_TENSOR_RANKS_H_
