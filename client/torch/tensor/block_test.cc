// Transformers against the same one undivided, and what their ranks exchange.

#include <memory>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/tensor/tensor_ranks.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

constexpr int64_t kSamples = 2;

std::shared_ptr<const DropoutPlace> PlaceOf(int64_t step) {
  auto place = std::make_shared<DropoutPlace>();
  place->seed = kSeed;
  place->step = step;
  return place;
}

class BlockTest : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  BlockTest()
      : ranks_(std::get<0>(GetParam())), sequence_(std::get<1>(GetParam())) {}

  const int ranks_;
  const bool sequence_;
  const GptSizes sizes_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, BlockTest,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::Bool()));

TEST_P(BlockTest, ABlockHasTwoCollectivesEachWayAndTheirBytes) {
  const Tensor x = Numbers({kSamples, sizes_.length, sizes_.features}, 1);
  OnTensorRanks(ranks_, sequence_, [&](const TensorRank& rank) {
    ParallelBlock block(sizes_, PlaceOf(0), rank.parallel);
    Prepare(block);
    const Tensor own_x = OwnSequence(x, rank).clone().requires_grad_();
    const Tensor y = block.forward(own_x);
    // Bytes of an activation.
    const int64_t whole = kSamples * sizes_.length * sizes_.features * 8;
    const int64_t part = whole / rank.size;
    const auto expect = [&](int64_t passes) {
      if (sequence_) {
        EXPECT_EQ(CountOf(rank, "all-gather"), 2 * passes);
        EXPECT_EQ(CountOf(rank, "reduce-scatter"), 2 * passes);
        EXPECT_EQ(rank.communicator->sequence(), 4 * passes);
        EXPECT_EQ(rank.communicator->payload_bytes(),
                  2 * passes * (part + whole));
      } else {
        EXPECT_EQ(CountOf(rank, "all-reduce"), 2 * passes);
        EXPECT_EQ(rank.communicator->sequence(), 2 * passes);
        EXPECT_EQ(rank.communicator->payload_bytes(), 2 * passes * whole);
      }
    };
    expect(1);
    y.sum().backward();
    ASSERT_OK(rank.parallel->TakeError());
    expect(2);
    if (!sequence_) {
      EXPECT_EQ(SummedBytes(block) * kSamples * sizes_.length,
                rank.communicator->payload_bytes());
    }
  });
}

TEST_P(BlockTest, ATransformerWithDropoutIsTheUndividedOne) {
  const Tensor tokens =
      (::torch::arange(kSamples * sizes_.length, ::torch::kInt64) * 17 %
       sizes_.vocabulary)
          .view({kSamples, sizes_.length});
  Tensor targets = (tokens * 5 + 3) % sizes_.vocabulary;
  targets[1][2] = -100;
  DenseGpt dense(sizes_, PlaceOf(3));
  Prepare(dense);
  const Tensor expected = dense.forward(tokens, targets);
  expected.sum().backward();
  OnTensorRanks(ranks_, sequence_, [&](const TensorRank& rank) {
    ParallelGpt model(sizes_, PlaceOf(3), rank);
    Prepare(model);
    const Tensor losses = model.forward(tokens, targets);
    ExpectNear(losses, expected.detach());
    losses.sum().backward();
    ASSERT_OK(SumSequenceGradients(model.Replicated(), rank.parallel));
    ExpectGradientsOf(dense, model);
  });
}

// What makes the test above one of dropout.
TEST_P(BlockTest, ATransformerInAnotherStepDropsOthers) {
  const Tensor tokens = ::torch::zeros({1, sizes_.length}, ::torch::kInt64);
  OnTensorRanks(ranks_, sequence_, [&](const TensorRank& rank) {
    std::vector<Tensor> losses;
    for (const int64_t step : {3, 3, 4}) {
      ParallelGpt model(sizes_, PlaceOf(step), rank);
      Prepare(model);
      losses.push_back(model.forward(tokens, tokens).detach());
    }
    ASSERT_OK(rank.parallel->TakeError());
    EXPECT_TRUE(losses[0].equal(losses[1]));
    EXPECT_FALSE(losses[0].equal(losses[2]));
  });
}

}  // namespace
}  // namespace coxswain::torch
