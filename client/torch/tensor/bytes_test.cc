// What tensor parallelism exchanges of a micro-batch, counted, against the
// formulas that it is planned by: with t ranks, and A bytes of an activation
// [samples, sequence, features], 2(t-1)/t A leave each rank for an all-reduce,
// and half of that for an all-gather or a reduce-scatter.

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/torch/tensor/tensor_ranks.h"
#include "gtest/gtest.h"
#include "tests/conformance/connected_group.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

constexpr int64_t kBatchSize = 6;
constexpr int64_t kWidth = 8;  // of an element

// Activations are so large that shared memory moves them in slices: smaller
// ones are read whole by each rank.
GptSizes LargeSizes() {
  GptSizes sizes;
  sizes.length = 24;
  sizes.features = 48;
  return sizes;
}

class BytesTest : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void OnShmRanks(const std::function<void(const TensorRank&)>& body) {
    OnTensorRanks(ConnectGroup(ranks_, absl::Minutes(1), ConnectShm), sequence_,
                  body);
  }
  // Of an activation of all ranks.
  int64_t Activation() const {
    return kBatchSize * sizes_.length * sizes_.features * kWidth;
  }
  // What leaves a rank for one all-reduce, or one of each of its halves.
  int64_t Exchanged(int64_t bytes) const {
    return 2 * (ranks_ - 1) * bytes / ranks_;
  }

  const int ranks_ = std::get<0>(GetParam());
  const bool sequence_ = std::get<1>(GetParam());
  const GptSizes sizes_ = LargeSizes();
  const std::shared_ptr<const DropoutPlace> place_ =
      std::make_shared<DropoutPlace>();
};

INSTANTIATE_TEST_SUITE_P(Ranks, BytesTest,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::Bool()));

// Of all ranks together: slices begin at cache lines, so that one rank has some
// elements more than another.
TEST_P(BytesTest, ABlockExchangesFourActivations) {
  constexpr size_t kMicroBatches = 3;
  const Tensor x = Numbers({kBatchSize, sizes_.length, sizes_.features}, 1);
  // After each forward and each backward pass.
  std::array<std::atomic<int64_t>, 2 * kMicroBatches> sent = {};
  OnShmRanks([&](const TensorRank& rank) {
    ParallelBlock block(sizes_, place_, rank.parallel);
    Prepare(block);
    const Tensor own_x = OwnSequence(x, rank).clone().requires_grad_();
    for (size_t pass = 0; pass < sent.size(); pass += 2) {
      const Tensor y = block.forward(own_x);
      sent[pass] += rank.communicator->wire_bytes();
      y.sum().backward();
      sent[pass + 1] += rank.communicator->wire_bytes();
    }
    ASSERT_OK(rank.parallel->TakeError());
    EXPECT_EQ(rank.communicator->sequence(),
              (sequence_ ? 8 : 4) * static_cast<int64_t>(kMicroBatches));
  });
  for (size_t pass = 0; pass < sent.size(); ++pass) {
    EXPECT_EQ(sent[pass], 2 * (static_cast<int64_t>(pass) + 1) * ranks_ *
                              Exchanged(Activation()))
        << "pass " << pass;
  }
}

// Launches in words, with their bytes: "all-reduce 4608".
std::vector<std::string> LaunchesFrom(const TensorRank& rank, size_t first) {
  std::vector<std::string> words;
  const auto launches = rank.communicator->launches();
  for (size_t i = first; i < launches.size(); ++i) {
    EXPECT_EQ(launches[i].dtype, DType::kFloat64);
    words.push_back(
        absl::StrCat(launches[i].kind, " ", launches[i].count * kWidth));
  }
  return words;
}

// In this order, and nothing else.
TEST_P(BytesTest, AMicroBatchOfATransformerHasTheseCollectives) {
  const Tensor tokens =
      (::torch::arange(kBatchSize * sizes_.length) * 17 % sizes_.vocabulary)
          .view({kBatchSize, sizes_.length});
  const int64_t targets = kBatchSize * sizes_.length * kWidth;
  const std::string sum = absl::StrCat("all-reduce ", Activation());
  const std::string gather = absl::StrCat("all-gather ", Activation() / ranks_);
  const std::string scatter = absl::StrCat("reduce-scatter ", Activation());
  const std::string entropy_max = absl::StrCat("all-reduce ", targets);
  const std::string entropy_sums = absl::StrCat("all-reduce ", 2 * targets);
  std::vector<std::string> forward, backward;
  if (sequence_) {
    // The embedding; attention and the feed-forward part; the head.
    forward = {scatter, gather, scatter,     gather,
               scatter, gather, entropy_max, entropy_sums};
    backward = {scatter, gather, scatter, gather, scatter, gather};
  } else {
    forward = {sum, sum, sum, entropy_max, entropy_sums};
    backward = {sum, sum, sum};
  }
  OnShmRanks([&](const TensorRank& rank) {
    ParallelGpt model(sizes_, place_, rank);
    Prepare(model);
    int64_t replicated = 0;
    for (const Tensor& one : model.Replicated()) replicated += one.numel();
    size_t seen = 0;
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const Tensor losses = model.forward(tokens, tokens);
      EXPECT_EQ(LaunchesFrom(rank, seen), forward);
      seen += forward.size();
      losses.sum().backward();
      EXPECT_EQ(LaunchesFrom(rank, seen), backward);
      seen += backward.size();
    }
    // Once a step.
    ASSERT_OK(SumSequenceGradients(model.Replicated(), rank.parallel));
    std::vector<std::string> after;
    if (sequence_) {
      after = {absl::StrCat("all-reduce ", replicated * kWidth)};
    }
    EXPECT_EQ(LaunchesFrom(rank, seen), after);
    EXPECT_EQ(rank.communicator->sequence(),
              static_cast<int64_t>(seen + after.size()));
  });
}

}  // namespace
}  // namespace coxswain::torch
