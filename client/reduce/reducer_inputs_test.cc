#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "base/status_matchers.h"
#include "client/reduce/reducer_test_support.h"
#include "schedule/ticket.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ReducerOptions Uneven() {
  ReducerOptions options = OneBucketEach();
  options.uneven_inputs = true;
  return options;
}

TEST(ReducerWeightsTest, GradientsCountByTheirRanksWeight) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(Uneven(), Parameters(2), &hook, communicator));
    // Weights 1, 3, 4 and gradients 8, 16, 24.
    const std::vector<double> weights = {1, 3, 4};
    ASSERT_OK(reducer->BeginStep(weights[static_cast<size_t>(rank)]));
    for (const int parameter : {1, 0}) {
      Fill(*reducer, parameter, 8.0f * static_cast<float>(rank + 1));
      ASSERT_OK(reducer->MarkReady(parameter));
    }
    ASSERT_OK(reducer->Finish());
    EXPECT_NEAR(Gradient(*reducer, 0)[0], (8 + 48 + 96) / 8.0, 1e-5);
    EXPECT_EQ(reducer->report().total_weight, 8);
    EXPECT_EQ(reducer->report().live_ranks, 3);
    ASSERT_OK(reducer->Commit());
  });
}

TEST(ReducerWeightsTest, ARankWithoutDataContributesNothingAndTheLiveDivide) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(Uneven(), Parameters(2), &hook, communicator));
    const bool live = rank != 0;
    Fill(*reducer, 0, 100);  // of a step before
    ASSERT_OK(reducer->BeginStep(live ? 1 : 0));
    if (live) {
      for (const int parameter : {1, 0}) {
        Fill(*reducer, parameter, 2.0f * static_cast<float>(rank));
        ASSERT_OK(reducer->MarkReady(parameter));
      }
    }
    ASSERT_OK(reducer->Finish());
    EXPECT_NEAR(Gradient(*reducer, 0)[0], 3, 1e-6);
    EXPECT_EQ(reducer->report().live_ranks, 2);
    EXPECT_EQ(reducer->report().first_live_rank, 1);
    ASSERT_OK(reducer->Commit());
    EXPECT_EQ(hook.step(), 1);
  });
}

TEST(ReducerWeightsTest, OnceNoRankHasDataNothingIsExchanged) {
  OnRanks(2, [](int, Communicator* communicator) {
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(Uneven(), Parameters(2), &hook, communicator));
    ASSERT_OK(reducer->BeginStep(0));
    ASSERT_OK(reducer->Finish());
    EXPECT_TRUE(reducer->report().empty);
    EXPECT_THAT(hook.log().events(), ElementsAre());
    EXPECT_THAT(reducer->Commit(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("no rank had data")));
    reducer->Rollback();
    ASSERT_OK(reducer->BeginStep(0));
  });
}

// Gets gradients as they are, and weighs them by itself.
class SharesHook : public AverageHook {
 public:
  bool applies_share() const override { return true; }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    first_ = *static_cast<const float*>(bucket.data.data);
    share_ = bucket.share;
    return AverageHook::Prepare(bucket, communicator);
  }
  float first() const { return first_; }
  std::optional<double> share() const { return share_; }

 private:
  float first_ = 0;
  std::optional<double> share_;
};

TEST(ReducerWeightsTest, AHookThatAppliesSharesGetsThemWithWholeGradients) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    SharesHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(Uneven(), Parameters(1), &hook, communicator));
    // Weights 0, 3, 5, the second one's gradients with a divisor of 6.
    schedule::Ticket ticket;
    ticket.micro_batches = rank == 0 ? 0 : 1;
    ticket.weight = rank == 0 ? 0 : 1 + 2 * rank;
    const double divisor = rank == 1 ? 6 : ticket.weight;
    ASSERT_OK(reducer->BeginStep(ticket, divisor));
    if (rank > 0) {
      Fill(*reducer, 0, 8);
      ASSERT_OK(reducer->MarkReady(0));
    }
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(hook.first(), rank == 0 ? 0 : 8);
    // On all ranks, also on those without data.
    ASSERT_TRUE(hook.share().has_value());
    EXPECT_EQ(*hook.share(), rank == 0 ? 1.0 / 3 : divisor / 8);
    ASSERT_OK(reducer->Commit());
  });
  LoopbackCommunicator communicator;
  SharesHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto even,
      Reducer::Create(OneBucketEach(), Parameters(1), &hook, &communicator));
  ASSERT_OK(even->BeginStep());
  ASSERT_OK(even->Finish());
  EXPECT_FALSE(hook.share().has_value());
}

// Data of weight 0 is not the end of data.
TEST(ReducerWeightsTest, DataOfWeight0CountsForNothingWhateverItIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool applies : {false, true}) {
    OnRanks(2, [&](int rank, Communicator* communicator) {
      AverageHook plain;
      SharesHook shares;
      AverageHook& hook = applies ? shares : plain;
      ReducerOptions options = Uneven();
      options.end_at_first = true;
      ASSERT_OK_AND_ASSIGN(
          const auto reducer,
          Reducer::Create(options, Parameters(1), &hook, communicator));
      const auto run = [&](double weight, float value) {
        schedule::Ticket ticket;
        ticket.weight = weight;
        ASSERT_OK(reducer->BeginStep(ticket, weight));
        Fill(*reducer, 0, value);
        ASSERT_OK(reducer->MarkReady(0));
        ASSERT_OK(reducer->Finish());
        EXPECT_EQ(reducer->report().ranks_with_data, 2);
        EXPECT_FALSE(reducer->report().ended);
      };
      run(rank == 0 ? 0 : 4, rank == 0 ? nan : 6);
      EXPECT_FALSE(reducer->report().empty);
      EXPECT_EQ(reducer->report().live_ranks, 1);
      EXPECT_EQ(Gradient(*reducer, 0)[0], applies ? 3 : 6);
      ASSERT_OK(reducer->Commit());
      run(0, nan);
      EXPECT_TRUE(reducer->report().empty);
      reducer->Rollback();
      // The end of the data is.
      ASSERT_OK(reducer->BeginStep(rank));
      ASSERT_OK(reducer->Finish());
      EXPECT_TRUE(reducer->report().ended);
      EXPECT_EQ(reducer->report().ranks_with_data, 1);
      reducer->Rollback();
    });
  }
}

TEST(ReducerWeightsTest, InvalidWeightsAreRefused) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto uneven,
      Reducer::Create(Uneven(), Parameters(1), &hook, &communicator));
  for (const double weight :
       {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(uneven->BeginStep(weight),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("finite and not negative")));
  }
  ASSERT_OK_AND_ASSIGN(
      const auto even,
      Reducer::Create(OneBucketEach(), Parameters(1), &hook, &communicator));
  EXPECT_THAT(even->BeginStep(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("need uneven_inputs")));
}

TEST(ReducerWeightsTest, ARankWithoutDataCannotMark) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(Uneven(), Parameters(1), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep(0));
  EXPECT_THAT(reducer->MarkReady(0),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("step of weight 0")));
}

TEST(ReducerUnusedTest, ReportsParametersThatNoRankUsed) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.find_unused_parameters = true;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(3), &hook, communicator));
    Reducer::MarkOptions unused;
    unused.used = false;
    unused.copy_back = true;
    Reducer::MarkOptions used;
    used.copy_back = true;
    // Parameter 0 is used by rank 1 only, 1 by both, 2 by none.
    std::vector<std::vector<float>> gradients(3, std::vector<float>(4, 6));
    ASSERT_OK(reducer->BeginStep());
    for (const int p : {2, 1, 0}) {
      const bool uses = p == 1 || (p == 0 && rank == 1);
      ASSERT_OK(reducer->MarkReady(
          p, SpanOf(&gradients[static_cast<size_t>(p)]), uses ? used : unused));
    }
    ASSERT_OK(reducer->Finish());
    EXPECT_FALSE(reducer->unused_everywhere(0));
    EXPECT_FALSE(reducer->unused_everywhere(1));
    EXPECT_TRUE(reducer->unused_everywhere(2));
    EXPECT_THAT(gradients[0], ElementsAre(6, 6, 6, 6));
    ASSERT_OK(reducer->Commit());

    // In the next step all is used by rank 0, which does not mark as such.
    for (auto& gradient : gradients) gradient.assign(4, 2);
    ASSERT_OK(reducer->BeginStep());
    if (rank == 0) {
      for (const int p : {2, 1, 0}) {
        ASSERT_OK(reducer->MarkReady(
            p, SpanOf(&gradients[static_cast<size_t>(p)]), used));
      }
    }
    ASSERT_OK(reducer->Finish());
    for (const int p : {2, 1, 0}) EXPECT_FALSE(reducer->unused_everywhere(p));
    const float expected = rank == 0 ? 1 : 2;  // rank 1 handed in no memory
    EXPECT_EQ(gradients[2][0], expected);
    EXPECT_THAT(Gradient(*reducer, 2), ElementsAre(1, 1, 1, 1));
  });
}

TEST(ReducerUnusedTest, WhatNoRankUsedIsNotCopiedBack) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.find_unused_parameters = true;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(1), &hook, communicator));
    std::vector<float> gradient(4, static_cast<float>(rank));
    Reducer::MarkOptions unused;
    unused.used = false;
    unused.copy_back = true;
    ASSERT_OK(reducer->BeginStep());
    ASSERT_OK(reducer->MarkReady(0, SpanOf(&gradient), unused));
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(gradient[0], static_cast<float>(rank));
  });
}

TEST(ReducerStatisticsTest, TheNormAndTheCountOfNonFiniteAreReported) {
  OnRanks(2, [](int, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.statistics = true;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(2), &hook, communicator));
    ASSERT_OK(reducer->BeginStep());
    Fill(*reducer, 1, 3);
    Fill(*reducer, 0, 4);
    for (const int parameter : {1, 0}) ASSERT_OK(reducer->MarkReady(parameter));
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(reducer->report().gradient_norm, 10);
    EXPECT_EQ(reducer->report().non_finite, 0);
    EXPECT_EQ(reducer->report().clip_scale, 1);
    ASSERT_OK(reducer->Commit());

    ASSERT_OK(reducer->BeginStep());
    Fill(*reducer, 1, std::numeric_limits<float>::infinity());
    for (const int parameter : {1, 0}) ASSERT_OK(reducer->MarkReady(parameter));
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(reducer->report().non_finite, 4);
    reducer->Rollback();
  });
}

TEST(ReducerStatisticsTest, LargeGradientsAreClippedInTheirBucketsAndOutside) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ReducerOptions options = OneBucketEach();
  options.max_norm = 1;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, Parameters(2), &hook, &communicator));
  std::vector<float> outside(4, 4);
  Reducer::MarkOptions copy_back;
  copy_back.copy_back = true;
  ASSERT_OK(reducer->BeginStep());
  Fill(*reducer, 1, 3);
  ASSERT_OK(reducer->MarkReady(1));
  ASSERT_OK(reducer->MarkReady(0, SpanOf(&outside), copy_back));
  ASSERT_OK(reducer->Finish());
  EXPECT_EQ(reducer->report().gradient_norm, 10);
  EXPECT_NEAR(reducer->report().clip_scale, 0.1, 1e-6);
  EXPECT_NEAR(Gradient(*reducer, 1)[0], 0.3, 1e-6);
  EXPECT_NEAR(outside[3], 0.4, 1e-6);
  ASSERT_OK(reducer->Commit());

  // A smaller norm stays as it is, and so does what is not finite.
  for (const float value : {0.1f, std::numeric_limits<float>::infinity()}) {
    ASSERT_OK(reducer->BeginStep());
    Fill(*reducer, 1, value);
    ASSERT_OK(reducer->MarkReady(1));
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(Gradient(*reducer, 1)[0], value);
    EXPECT_EQ(reducer->report().clip_scale, 1);
    reducer->Rollback();
  }
}

TEST(ReducerAverageTest, EachBucketIsHandedOverAsSoonAsItIsReady) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  Log log;
  ReducerOptions options = OneBucketEach();
  std::vector<float> outside(4, 1);
  options.on_average = [&](const Bucket& bucket) {
    log.Add(absl::StrCat(bucket.index, ": ", outside[0]));
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, Parameters(3), &hook, &communicator));
  Reducer::MarkOptions copy_back;
  copy_back.copy_back = true;
  ASSERT_OK(reducer->BeginStep());
  ASSERT_OK(reducer->MarkReady(2, SpanOf(&outside), copy_back));
  outside.assign(4, 0);
  ASSERT_OK(reducer->MarkReady(1));
  ASSERT_TRUE(log.WaitForSize(1));
  // Bucket 0 is handed over while bucket 2 has no gradients yet, and after the
  // copy.
  EXPECT_THAT(log.events(), ElementsAre("0: 1"));
  ASSERT_OK(reducer->MarkReady(0));
  ASSERT_OK(reducer->Finish());
  EXPECT_EQ(log.events().size(), 3u);
}

TEST(ReducerAverageTest, ItsErrorBreaksTheStep) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ReducerOptions options = OneBucketEach();
  options.on_average = [](const Bucket&) {
    return absl::InternalError("the optimizer broke");
  };
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, Parameters(1), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep());
  (void)reducer->MarkReady(0);
  EXPECT_THAT(reducer->Finish(),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("bucket 0 of 1: the optimizer broke")));
}

TEST(ReducerAverageTest, IsRefusedWithOptionsThatNeedTheWholeStep) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ReducerOptions options;
  options.on_average = [](const Bucket&) { return absl::OkStatus(); };
  options.max_norm = 1;
  EXPECT_THAT(Reducer::Create(options, Parameters(1), &hook, &communicator),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("max_norm=1 needs the gradients")));
  options.max_norm = 0;
  options.find_unused_parameters = true;
  EXPECT_THAT(Reducer::Create(options, Parameters(1), &hook, &communicator),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("find_unused_parameters")));
}

}  // namespace
}  // namespace coxswain
