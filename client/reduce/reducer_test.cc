#include "client/reduce/reducer.h"

#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "client/reduce/counted_buffers_for_test.h"
#include "client/reduce/reducer_test_support.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(ReducerTest, TheFirstBucketIsLaunchedWhileGradientsAreStillMissing) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(3), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep());
  ASSERT_OK(reducer->MarkReady(2));
  ASSERT_TRUE(hook.log().WaitForSize(1));
  EXPECT_THAT(hook.log().events(), ElementsAre("0.0"));
  EXPECT_THAT(reducer->Unmarked(), ElementsAre(0, 1));
  ASSERT_OK(reducer->MarkReady(1));
  ASSERT_OK(reducer->MarkReady(0));
  ASSERT_OK(reducer->Finish());
  ASSERT_OK(reducer->Commit());
  EXPECT_EQ(hook.step(), 1);
}

TEST(ReducerTest, BucketsInterleaveInTheDocumentedOrderWhicheverIsReadyFirst) {
  const std::vector<std::vector<int>> marking_orders = {
      {3, 2, 1, 0}, {0, 1, 2, 3}, {1, 3, 0, 2}};
  for (const std::vector<int>& order : marking_orders) {
    LoopbackCommunicator communicator;
    HookPlan plan;
    plan.phases = 2;
    AverageHook hook(plan);
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(4), &hook, &communicator));
    ASSERT_OK(reducer->BeginStep());
    for (const int parameter : order) {
      ASSERT_OK(reducer->MarkReady(parameter));
    }
    ASSERT_OK(reducer->Finish());
    EXPECT_THAT(hook.log().events(),
                ElementsAre("0.0",                // round 0
                            "1.0", "0.1",         //
                            "2.0", "1.1", "0.2",  //
                            "3.0", "2.1", "1.2",  //
                            "3.1", "2.2",         //
                            "3.2"));
  }
}

TEST(ReducerTest, AllRanksReceiveTheAverage) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(2), &hook, communicator));
    ASSERT_OK(reducer->BeginStep());
    std::vector<float> gradient = {1, 2, 3, static_cast<float>(rank)};
    ASSERT_OK(reducer->MarkReady(1, SpanOf(&gradient)));
    Fill(*reducer, 0, 10.0f * static_cast<float>(rank));
    ASSERT_OK(reducer->MarkReady(0));
    ASSERT_OK(reducer->Finish());
    EXPECT_THAT(Gradient(*reducer, 1), ElementsAre(1, 2, 3, 1));
    EXPECT_THAT(Gradient(*reducer, 0), ElementsAre(10, 10, 10, 10));
    ASSERT_OK(reducer->Commit());
  });
}

TEST(ReducerTest, AnUnmarkedParameterContributesZeros) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(2), &hook, communicator));
    Fill(*reducer, 0, 100);
    Fill(*reducer, 1, 6);
    ASSERT_OK(reducer->BeginStep());
    ASSERT_OK(reducer->MarkReady(1));
    if (rank == 0) {
      Fill(*reducer, 0, 4);
      ASSERT_OK(reducer->MarkReady(0));
    }
    ASSERT_OK(reducer->Finish());
    EXPECT_THAT(Gradient(*reducer, 0), ElementsAre(2, 2, 2, 2));
    EXPECT_THAT(Gradient(*reducer, 1), ElementsAre(6, 6, 6, 6));
  });
}

TEST(ReducerTest, AHookErrorEndsTheStepOnAllRanksAndRollsBack) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    HookPlan plan;
    plan.fail_bucket = rank == 1 ? 1 : -1;
    AverageHook hook(plan);
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(3), &hook, communicator));
    ASSERT_OK(reducer->BeginStep());
    for (int i = 2; i >= 0; --i) (void)reducer->MarkReady(i);
    const absl::Status status = reducer->Finish();
    if (rank == 1) {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInternal,
                           "rank 1, step 0, bucket 1 of 3: the hook broke"));
    } else {
      EXPECT_THAT(status, Not(IsOk()));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("rank 0, step 0, bucket "));
    }
    EXPECT_EQ(hook.rollbacks(), 1);
    EXPECT_EQ(hook.step(), 0);
    EXPECT_EQ(reducer->BeginStep(), status);
    EXPECT_EQ(reducer->Commit(), status);
  });
}

TEST(ReducerTest, MarkingTwiceIsAnErrorThatNamesTheCauses) {
  const auto communicator = Stuck();
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(const auto reducer,
                       Reducer::Create(OneBucketEach(), Parameters(2), &hook,
                                       communicator.get()));
  ASSERT_OK(reducer->BeginStep());
  ASSERT_OK(reducer->MarkReady(1));
  const auto is_twice =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("\"p1\" was marked ready twice"),
                     HasSubstr("two backward passes")));
  EXPECT_THAT(reducer->MarkReady(1), is_twice);
  EXPECT_THAT(reducer->Finish(), is_twice);
  EXPECT_THAT(AbortReason(communicator.get()), HasSubstr("marked ready twice"));
  EXPECT_EQ(hook.rollbacks(), 1);
}

TEST(ReducerTest, AGradientThatDoesNotFitIsRefused) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(1), &hook, &communicator));
  std::vector<float> gradient(3);
  EXPECT_THAT(reducer->MarkReady(0),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("outside a step")));
  ASSERT_OK(reducer->BeginStep());
  EXPECT_THAT(reducer->MarkReady(0, SpanOf(&gradient)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"p0\" has 3 x float32")));
  EXPECT_THAT(reducer->Finish(), Not(IsOk()));
}

TEST(ReducerTest, ARolledBackStepCanBeFollowedByAnother) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(2), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep());
  EXPECT_THAT(reducer->BeginStep(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("still being exchanged")));
  ASSERT_OK(reducer->Finish());
  EXPECT_THAT(reducer->BeginStep(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("neither committed nor rolled back")));
  reducer->Rollback();
  EXPECT_EQ(hook.rollbacks(), 1);
  EXPECT_EQ(hook.step(), 0);
  ASSERT_OK(reducer->BeginStep());
  ASSERT_OK(reducer->Finish());
  ASSERT_OK(reducer->Commit());
  EXPECT_EQ(hook.step(), 1);
  EXPECT_FALSE(reducer->Commit().ok());
}

TEST(ReducerTest, AFailedCommitIsRolledBack) {
  LoopbackCommunicator communicator;
  HookPlan plan;
  plan.fail_commit = true;
  AverageHook hook(plan);
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(1), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep());
  ASSERT_OK(reducer->Finish());
  EXPECT_THAT(reducer->Commit(), StatusIs(absl::StatusCode::kInternal,
                                          HasSubstr("the commit broke")));
  EXPECT_EQ(hook.rollbacks(), 1);
}

TEST(ReducerTest, ACollectiveThatDoesNotEndMeetsTheDeadline) {
  const auto communicator = Stuck();
  AverageHook hook;
  ReducerOptions options = OneBucketEach();
  options.timeout = absl::Milliseconds(20);
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, Parameters(2), &hook, communicator.get()));
  ASSERT_OK(reducer->BeginStep());
  EXPECT_THAT(reducer->Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                          HasSubstr("rank 0, step 0, ")));
  EXPECT_THAT(AbortReason(communicator.get()),
              HasSubstr("not ended within 20ms"));
  EXPECT_EQ(hook.rollbacks(), 1);
}

TEST(ReducerTest, DestructionInTheMiddleOfAStepAbortsIt) {
  const auto communicator = Stuck();
  AverageHook hook;
  {
    ASSERT_OK_AND_ASSIGN(const auto reducer,
                         Reducer::Create(OneBucketEach(), Parameters(2), &hook,
                                         communicator.get()));
    ASSERT_OK(reducer->BeginStep());
    ASSERT_OK(reducer->MarkReady(1));
    ASSERT_TRUE(hook.log().WaitForSize(1));
  }
  EXPECT_THAT(AbortReason(communicator.get()), HasSubstr("aborted"));
  EXPECT_EQ(hook.rollbacks(), 1);
}

TEST(ReducerTest, ARankThatAbortsEndsTheOthers) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(2), &hook, communicator));
    ASSERT_OK(reducer->BeginStep());
    if (rank == 0) return;
    EXPECT_THAT(reducer->Finish(), Not(IsOk()));
    EXPECT_EQ(hook.rollbacks(), 1);
  });
}

TEST(ReducerTest, BroadcastsSmallAndLargeSpansFromRankZero) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OneBucketEach(), Parameters(1), &hook, communicator));
    // Less than, more than and almost one packet, to come in three.
    std::vector<std::vector<float>> values;
    for (const size_t count : {3, 7 << 20, 6 << 20, 0, 1 << 20}) {
      values.emplace_back(count);
      std::iota(values.back().begin(), values.back().end(),
                rank == 0 ? 5.0f : 0.0f);
    }
    std::vector<Span> spans;
    for (auto& value : values) spans.push_back(SpanOf(&value));
    const int64_t before = communicator->sequence();
    ASSERT_OK(reducer->BroadcastFromRoot(spans));
    EXPECT_EQ(communicator->sequence() - before, 3);
    for (const auto& value : values) {
      std::vector<float> expected(value.size());
      std::iota(expected.begin(), expected.end(), 5.0f);
      EXPECT_TRUE(value == expected);
    }
  });
}

// Its broadcasts end when the test ends them, aborted or not.
class DeafCommunicator : public CountedBuffers<LoopbackCommunicator> {
 public:
  const WorkPtr broadcast = std::make_shared<Work>();

 protected:
  WorkPtr DoBroadcast(Span, int) override { return broadcast; }
};

TEST(ReducerTest, ABroadcastPastItsTimeoutKeepsItsMemoryUntilItEnds) {
  DeafCommunicator communicator;
  AverageHook hook;
  ReducerOptions options = OneBucketEach();
  options.timeout = absl::Milliseconds(10);
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, Parameters(1), &hook, &communicator));
  const int before = communicator.buffers;
  std::vector<float> value(3);
  EXPECT_THAT(
      reducer->BroadcastFromRoot({SpanOf(&value)}),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("broadcast: ")));
  EXPECT_EQ(communicator.buffers, before + 1);
  communicator.broadcast->Complete(absl::AbortedError("at last"));
  EXPECT_EQ(communicator.buffers, before);
}

TEST(ReducerTest, TimesEachBucketByTheInjectedClock) {
  FakeClock clock;
  LoopbackCommunicator communicator;
  AverageHook hook;
  ReducerOptions options = OneBucketEach();
  options.clock = &clock;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, Parameters(2), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep());
  const absl::Time start = clock.Now();
  ASSERT_OK(reducer->MarkReady(1));
  ASSERT_TRUE(hook.log().WaitForSize(1));
  clock.Advance(absl::Seconds(3));
  ASSERT_OK(reducer->MarkReady(0));
  ASSERT_OK(reducer->Finish());
  const auto timings = reducer->report().buckets;
  EXPECT_EQ(timings[0].ready, start);
  EXPECT_EQ(timings[0].launched, start);
  EXPECT_EQ(timings[0].done, start + absl::Seconds(3));
  EXPECT_EQ(timings[1].ready, start + absl::Seconds(3));
  EXPECT_EQ(timings[1].done, start + absl::Seconds(3));
}

TEST(ReducerTest, RefusesParametersThatItCannotReduce) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  const auto create = [&](std::vector<ParameterSpec> parameters) {
    return Reducer::Create({}, std::move(parameters), &hook, &communicator);
  };
  EXPECT_THAT(create({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("no trainable parameters")));
  auto parameters = Parameters(2);
  parameters[1].name = "p0";
  EXPECT_THAT(create(parameters), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("named \"p0\"")));
  parameters = Parameters(1);
  parameters[0].device.kind = Device::Kind::kCuda;
  EXPECT_THAT(create(parameters),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("moves memory of the CPU")));
}

// Many steps, several threads that mark on each rank, in an order of their
// own: sums are exact, so every rank must hold exactly the average.
TEST(ReducerTest, ManyStepsWithGradientsMarkedFromSeveralThreads) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    constexpr int kParameters = 12;
    constexpr int kSteps = 100;
    HookPlan plan;
    plan.phases = 3;
    AverageHook hook(plan);
    ReducerOptions options = OneBucketEach();
    options.buckets = {16, 40};
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(kParameters), &hook, communicator));
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_OK(reducer->BeginStep());
      const CounterRandom random(static_cast<uint64_t>(rank),
                                 static_cast<uint64_t>(step));
      const int shift = static_cast<int>(random.Bits(0) % kParameters);
      std::vector<std::thread> markers;
      for (int half = 0; half < 2; ++half) {
        markers.emplace_back([&, half] {
          for (int i = half; i < kParameters; i += 2) {
            const int parameter = (i + shift) % kParameters;
            Fill(*reducer, parameter, static_cast<float>(parameter + rank));
            ASSERT_OK(reducer->MarkReady(parameter));
          }
        });
      }
      for (std::thread& marker : markers) marker.join();
      ASSERT_OK(reducer->Finish());
      for (int parameter = 0; parameter < kParameters; ++parameter) {
        const float average = static_cast<float>(parameter + 1);
        ASSERT_THAT(Gradient(*reducer, parameter),
                    ElementsAre(average, average, average, average));
      }
      ASSERT_OK(reducer->Commit());
    }
    EXPECT_EQ(hook.step(), kSteps);
  });
}

}  // namespace
}  // namespace coxswain
