// Each layer against the same one undivided, in float64.

#include <torch/nn/functional.h>
#include <torch/nn/init.h>

#include <memory>
#include <tuple>

#include "base/status_matchers.h"
#include "client/torch/tensor/parallel_attention.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/tensor/tensor_ranks.h"
#include "client/torch/tensor/vocab_parallel.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

namespace F = ::torch::nn::functional;
using ::torch::Tensor;

constexpr int64_t kBatch = 2;
constexpr int64_t kLength = 12;
constexpr int64_t kFeatures = 24;
constexpr int64_t kOutputs = 13;  // come out even for no number of ranks
constexpr int64_t kVocabulary = 101;

// How many ranks, and whether with sequence parallelism.
class LayersTest : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void OnRanks(const std::function<void(const TensorRank&)>& body) {
    OnTensorRanks(std::get<0>(GetParam()), std::get<1>(GetParam()), body);
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, LayersTest,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Bool()));

// A leaf of these elements.
Tensor Leaf(const Tensor& values) {
  return values.detach().clone().requires_grad_();
}

TEST_P(LayersTest, ColumnParallelLinearIsALinearLayer) {
  const Tensor x = Numbers({kBatch, kLength, kFeatures}, 1);
  const Tensor of_outputs = Numbers({kBatch, kLength, kOutputs}, 2);
  ::torch::nn::Linear dense(kFeatures, kOutputs);
  Prepare(*dense);
  const Tensor dense_x = Leaf(x);
  const Tensor expected = dense->forward(dense_x);
  (expected * of_outputs).sum().backward();
  OnRanks([&](const TensorRank& rank) {
    ParallelLinearOptions options;
    options.in_features = kFeatures;
    options.out_features = kOutputs;
    const auto layer = ColumnParallelLinear::Create(rank.parallel, options);
    ASSERT_OK(layer);
    Prepare(**layer);
    const EvenRange own = (*layer)->outputs();
    const auto part = [&own](const Tensor& whole) {
      return whole.slice(-1, own.begin, own.end);
    };
    const Tensor own_x = Leaf(OwnSequence(x, rank));
    const Tensor y = (*layer)->forward(own_x);
    ExpectNear(y, part(expected.detach()));
    (y * part(of_outputs)).sum().backward();
    ASSERT_OK(rank.parallel->TakeError());
    ExpectNear(own_x.grad(), OwnSequence(dense_x.grad(), rank));
    ExpectGradientsOf(*dense, **layer);
  });
}

TEST_P(LayersTest, RowParallelLinearIsALinearLayer) {
  const Tensor x = Numbers({kBatch, kLength, kOutputs}, 3);
  const Tensor of_outputs = Numbers({kBatch, kLength, kFeatures}, 4);
  ::torch::nn::Linear dense(kOutputs, kFeatures);
  Prepare(*dense);
  ::torch::nn::init::constant_(dense->bias, 0.5);
  const Tensor dense_x = Leaf(x);
  const Tensor expected = dense->forward(dense_x);
  (expected * of_outputs).sum().backward();
  OnRanks([&](const TensorRank& rank) {
    ParallelLinearOptions options;
    options.in_features = kOutputs;
    options.out_features = kFeatures;
    const auto layer = RowParallelLinear::Create(rank.parallel, options);
    ASSERT_OK(layer);
    Prepare(**layer);
    const Tensor bias = (*layer)->named_parameters()["bias"];
    ::torch::nn::init::constant_(bias, 0.5);
    const EvenRange own = (*layer)->inputs();
    const Tensor own_x = Leaf(x.slice(-1, own.begin, own.end));
    const Tensor y = (*layer)->forward(own_x);
    ExpectNear(y, OwnSequence(expected.detach(), rank));
    (y * OwnSequence(of_outputs, rank)).sum().backward();
    ASSERT_OK(SumSequenceGradients({bias}, rank.parallel));
    ExpectNear(own_x.grad(), dense_x.grad().slice(-1, own.begin, own.end));
    ExpectGradientsOf(*dense, **layer);
  });
}

TEST_P(LayersTest, VocabParallelEmbeddingIsAnEmbedding) {
  // All of the vocabulary, and some of it twice.
  const Tensor tokens =
      (::torch::arange(9 * kLength, ::torch::kInt64) * 7 % kVocabulary)
          .view({9, kLength});
  const Tensor of_outputs = Numbers({9, kLength, kFeatures}, 5);
  ::torch::nn::Embedding dense(kVocabulary, kFeatures);
  Prepare(*dense);
  const Tensor expected = dense->forward(tokens);
  (expected * of_outputs).sum().backward();
  OnRanks([&](const TensorRank& rank) {
    const auto layer =
        VocabParallelEmbedding::Create(rank.parallel, kVocabulary, kFeatures);
    ASSERT_OK(layer);
    Prepare(**layer);
    const Tensor y = (*layer)->forward(tokens);
    ExpectNear(y, OwnSequence(expected.detach(), rank));
    (y * OwnSequence(of_outputs, rank)).sum().backward();
    ASSERT_OK(rank.parallel->TakeError());
    ExpectGradientsOf(*dense, **layer);
  });
}

TEST_P(LayersTest, VocabParallelCrossEntropyIsTheCrossEntropy) {
  // So large that exp() of them overflows without the maximum.
  const Tensor logits = Numbers({kBatch, kLength, kVocabulary}, 6) * 400;
  Tensor targets =
      (::torch::arange(kBatch * kLength, ::torch::kInt64) * 31 % kVocabulary)
          .view({kBatch, kLength});
  targets[0][3] = -100;
  targets[1][0] = kVocabulary - 1;
  const Tensor of_losses = Numbers({kBatch, kLength}, 7);
  const Tensor dense_logits = Leaf(logits);
  const Tensor expected =
      F::cross_entropy(dense_logits.flatten(0, 1), targets.flatten(),
                       F::CrossEntropyFuncOptions().reduction(::torch::kNone))
          .view_as(targets);
  (expected * of_losses).sum().backward();
  OnRanks([&](const TensorRank& rank) {
    const EvenRange own = EvenRange::Of(kVocabulary, rank.size, rank.index);
    const Tensor own_logits = Leaf(logits.slice(-1, own.begin, own.end));
    const Tensor losses = VocabParallelCrossEntropy(own_logits, targets,
                                                    kVocabulary, rank.parallel);
    EXPECT_EQ(losses[0][3].item<double>(), 0);
    ExpectNear(losses / 1e3, expected.detach() / 1e3);  // of a thousand
    (losses * of_losses).sum().backward();
    ASSERT_OK(rank.parallel->TakeError());
    ExpectNear(own_logits.grad(),
               dense_logits.grad().slice(-1, own.begin, own.end));
    EXPECT_EQ(CountOf(rank, "all-reduce"), rank.size > 1 ? 2 : 0);
    if (rank.size == 1) return;
    // A maximum, and two sums, for each target.
    EXPECT_EQ(rank.communicator->payload_bytes(), 3 * 8 * kBatch * kLength);
  });
}

TEST_P(LayersTest, ParallelSelfAttentionIsSelfAttention) {
  const Tensor x = Numbers({kBatch, kLength, kFeatures}, 8);
  const Tensor of_outputs = Numbers({kBatch, kLength, kFeatures}, 9);
  DenseAttention dense(kFeatures, /*heads=*/4, /*dropout=*/nullptr);
  Prepare(dense);
  const Tensor dense_x = Leaf(x);
  const Tensor expected = dense.forward(dense_x);
  (expected * of_outputs).sum().backward();
  OnRanks([&](const TensorRank& rank) {
    ParallelAttentionOptions options;
    options.features = kFeatures;
    options.heads = 4;
    const auto layer = ParallelSelfAttention::Create(rank.parallel, options);
    ASSERT_OK(layer);
    Prepare(**layer);
    const Tensor own_x = Leaf(OwnSequence(x, rank));
    const Tensor y = (*layer)->forward(own_x);
    ExpectNear(y, OwnSequence(expected.detach(), rank));
    (y * OwnSequence(of_outputs, rank)).sum().backward();
    ASSERT_OK(SumSequenceGradients({(*layer)->named_parameters()["out.bias"]},
                                   rank.parallel));
    ExpectNear(own_x.grad(), OwnSequence(dense_x.grad(), rank));
    ExpectGradientsOf(dense, **layer);
  });
}

TEST_P(LayersTest, TheSequenceIsDividedAndJoinedAtItsEnds) {
  const Tensor x = Numbers({kBatch, kLength, kFeatures}, 10);
  const Tensor of_outputs = Numbers({kBatch, kLength, kFeatures}, 11);
  OnRanks([&](const TensorRank& rank) {
    const Tensor leaf = Leaf(x);
    const Tensor part = ScatterToSequence(leaf, rank.parallel);
    ASSERT_EQ(part.size(1), kLength / rank.size);
    const Tensor whole = GatherFromSequence(part * 2, rank.parallel);
    EXPECT_TRUE(whole.equal(x * 2));
    (whole * of_outputs).sum().backward();
    ASSERT_OK(rank.parallel->TakeError());
    EXPECT_TRUE(leaf.grad().equal(of_outputs * 2));
  });
}

}  // namespace
}  // namespace coxswain::torch
