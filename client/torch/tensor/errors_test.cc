// Layers that fail in the middle of a pass, and wrong use.

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/torch/tensor/tensor_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::torch::Tensor;

// With sequence parallelism or without.
class FailureTest : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Sequence, FailureTest, testing::Bool());

TEST_P(FailureTest, ACollectiveThatFailsEndsThePassesOfAllRanks) {
  const GptSizes sizes;
  const auto place = std::make_shared<const DropoutPlace>();
  const Tensor tokens = ::torch::zeros({1, sizes.length}, ::torch::kInt64);
  // Each launch of rank 1 fails once, in the forward and the backward pass.
  int64_t launches = 1;
  for (int64_t failing = 0; failing < launches; ++failing) {
    std::atomic<int64_t> all{0};
    OnTensorRanks(3, GetParam(), [&](const TensorRank& rank) {
      SCOPED_TRACE(absl::StrCat("launch ", failing, " on rank ", rank.index));
      ParallelGpt model(sizes, place, rank);
      Prepare(model);
      if (rank.index == 1) {
        rank.communicator->Fail(failing,
                                absl::UnavailableError("the cable is out"));
      }
      const Tensor losses = model.forward(tokens, tokens);
      losses.sum().backward();
      const absl::Status status = rank.parallel->TakeError();
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("tensor parallelism, rank ",
                                         rank.index, " of 3: ")));
      if (rank.index == 1) {
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr("the cable is out"));
      }
      EXPECT_TRUE(losses.isfinite().all().item<bool>());
      EXPECT_OK(rank.parallel->TakeError());
      // The group has ended: so does each later pass, at once.
      model.forward(tokens, tokens).sum().backward();
      EXPECT_FALSE(rank.parallel->TakeError().ok());
    });
    if (failing == 0) {
      OnTensorRanks(3, GetParam(), [&](const TensorRank& rank) {
        ParallelGpt model(sizes, place, rank);
        Prepare(model);
        model.forward(tokens, tokens).sum().backward();
        EXPECT_OK(rank.parallel->TakeError());
        all = static_cast<int64_t>(rank.communicator->launches().size());
      });
      launches = all;
      EXPECT_GE(launches, 8);
    }
  }
}

TEST(LostPeerTest, APeerThatLeavesEndsThePass) {
  OnTensorRanks(3, /*sequence=*/false, [](const TensorRank& rank) {
    if (rank.index == 2) {
      rank.communicator->Abort("it was stopped");
      return;
    }
    const Tensor x = ::torch::ones({2, 4, 8}).requires_grad_();
    const Tensor y = ReduceFromParallel(x, rank.parallel);
    EXPECT_EQ(y.abs().max().item<double>(), 0);
    y.sum().backward();
    const absl::Status status = rank.parallel->TakeError();
    EXPECT_THAT(std::string(status.message()), HasSubstr("all-reduce: "));
  });
}

// What a rank's layers refuse while the others' wait in a collective: all end.
void ExpectRefused(bool sequence, const std::string& why,
                   const std::function<void(const TensorRank&, bool)>& use) {
  OnTensorRanks(2, sequence, [&](const TensorRank& rank) {
    use(rank, /*wrong=*/rank.index == 1);
    const absl::Status status = rank.parallel->TakeError();
    EXPECT_FALSE(status.ok());
    if (rank.index != 1) return;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  });
}

TEST(WrongUseTest, ActivationsThatDoNotFitEndThePassesOfAllRanks) {
  const auto options = [](int64_t in, int64_t out) {
    ParallelLinearOptions linear;
    linear.in_features = in;
    linear.out_features = out;
    return linear;
  };
  for (const bool sequence : {false, true}) {
    ExpectRefused(
        sequence, "a column-parallel linear layer got an input of",
        [&](const TensorRank& rank, bool wrong) {
          const auto layer =
              ColumnParallelLinear::Create(rank.parallel, options(8, 6));
          ASSERT_OK(layer);
          const Tensor x = ::torch::ones({2, 4, wrong ? 7 : 8});
          const Tensor y = (*layer)->forward(x.requires_grad_());
          EXPECT_EQ(y.sizes(), at::IntArrayRef({2, sequence ? 8 : 4, 3}));
          y.sum().backward();
        });
    ExpectRefused(
        sequence, "a row-parallel linear layer got an input of",
        [&](const TensorRank& rank, bool wrong) {
          const auto layer =
              RowParallelLinear::Create(rank.parallel, options(8, 6));
          ASSERT_OK(layer);
          const Tensor y =
              (*layer)->forward(::torch::ones({2, 4, wrong ? 8 : 4}));
          EXPECT_EQ(y.sizes(), at::IntArrayRef({2, sequence ? 2 : 4, 6}));
          y.sum().backward();
        });
  }
  ExpectRefused(
      true, "of which 2 ranks can have the same number",
      [&](const TensorRank& rank, bool wrong) {
        const Tensor x = ::torch::ones({2, wrong ? 5 : 4, 8});
        ReduceFromParallel(x.requires_grad_(), rank.parallel).sum().backward();
      });
  ExpectRefused(
      false, "the index 101, which is not in its vocabulary of 101",
      [&](const TensorRank& rank, bool wrong) {
        const auto layer =
            VocabParallelEmbedding::Create(rank.parallel, 101, 4);
        ASSERT_OK(layer);
        (*layer)
            ->forward(::torch::full({2, 3}, wrong ? 101 : 100, ::torch::kInt64))
            .sum()
            .backward();
      });
  ExpectRefused(
      false, "5 targets for logits of",
      [&](const TensorRank& rank, bool wrong) {
        const Tensor logits =
            ::torch::zeros({4, rank.index == 0 ? 51 : 50}).requires_grad_();
        VocabParallelCrossEntropy(
            logits, ::torch::zeros({wrong ? 5 : 4}, ::torch::kInt64), 101,
            rank.parallel)
            .sum()
            .backward();
      });
  ExpectRefused(false, "it must be [batch, sequence, features]",
                [&](const TensorRank& rank, bool wrong) {
                  ParallelAttentionOptions attention;
                  attention.features = 8;
                  attention.heads = 2;
                  const auto layer =
                      ParallelSelfAttention::Create(rank.parallel, attention);
                  ASSERT_OK(layer);
                  Tensor x = ::torch::ones({1, 4, 8});
                  if (wrong) x = x[0];
                  (*layer)->forward(x).sum().backward();
                });
  ExpectRefused(
      false, "compute with Float and Double on the CPU",
      [&](const TensorRank& rank, bool wrong) {
        ReduceFromParallel(
            ::torch::ones({4}, wrong ? ::torch::kBFloat16 : ::torch::kFloat32),
            rank.parallel);
      });
}

TEST(WrongUseTest, LayersThatTheRanksCannotDivideAreRefused) {
  EXPECT_THAT(std::string(TensorParallel::Create({}).status().message()),
              HasSubstr("needs the communicator of the ranks along tp"));
  LoopbackCommunicator alone;
  TensorParallelOptions no_time;
  no_time.communicator = &alone;
  no_time.timeout = absl::ZeroDuration();
  EXPECT_THAT(std::string(TensorParallel::Create(no_time).status().message()),
              HasSubstr("collectives need some time"));
  EXPECT_FALSE(VocabParallelEmbedding::Create(nullptr, 4, 4).ok());
  OnTensorRanks(3, false, [](const TensorRank& rank) {
    ParallelLinearOptions linear;
    const auto refused = [&](int64_t in, int64_t out, int64_t unit) {
      linear = {in, out, true, unit};
      const auto layer = ColumnParallelLinear::Create(rank.parallel, linear);
      EXPECT_EQ(layer.status().code(), absl::StatusCode::kInvalidArgument);
      return std::string(layer.status().message());
    };
    EXPECT_THAT(refused(0, 4, 1), HasSubstr("there must be some"));
    EXPECT_THAT(refused(4, 6, 4), HasSubstr("which is no divisor of them"));
    EXPECT_THAT(refused(4, 8, 4),
                AllOf(HasSubstr("cannot be divided among 3 ranks"),
                      HasSubstr("make the mesh's tp at most 2")));
    ParallelAttentionOptions attention;
    attention.features = 8;
    attention.heads = 2;
    EXPECT_THAT(
        std::string(ParallelSelfAttention::Create(rank.parallel, attention)
                        .status()
                        .message()),
        HasSubstr("has 2 heads, which cannot be divided among 3"));
    attention.heads = 3;
    EXPECT_THAT(
        std::string(ParallelSelfAttention::Create(rank.parallel, attention)
                        .status()
                        .message()),
        HasSubstr("each head needs the same number of features"));
    EXPECT_THAT(std::string(VocabParallelEmbedding::Create(rank.parallel, 2, 4)
                                .status()
                                .message()),
                HasSubstr("has 2 rows, which cannot be divided"));
    EXPECT_EQ(rank.communicator->sequence(), 0);
  });
}

}  // namespace
}  // namespace coxswain::torch
