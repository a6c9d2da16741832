// Windows that are begun as a whole: always as their micro-batches one by one.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/accumulate/accumulator.h"

namespace coxswain::accumulator_window_test {
namespace {

using testing::HasSubstr;

constexpr char kTrain[] = "train";

schedule::Plan PlanOf(int steps, schedule::TailPolicy tail,
                      schedule::Weighting weighting) {
  schedule::Plan plan;
  plan.version = 1;
  plan.accumulation_steps = steps;
  plan.terms.tail = tail;
  plan.terms.weighting = weighting;
  return plan;
}

Accumulator Make(const schedule::Plan& plan) {
  Accumulator::Options options;
  options.plan = plan;
  return Accumulator::Create(options).value();
}

void ExpectSame(const MicroBatch& whole, const MicroBatch& one) {
  EXPECT_EQ(whole.step, one.step);
  EXPECT_EQ(whole.micro, one.micro);
  EXPECT_EQ(whole.window, one.window);
  EXPECT_EQ(whole.loss_scale, one.loss_scale);
  EXPECT_EQ(whole.empty, one.empty);
  EXPECT_EQ(whole.sync, one.sync);
  EXPECT_EQ(whole.exchange, one.exchange);
  EXPECT_EQ(whole.scheduler_steps, one.scheduler_steps);
}

void ExpectSame(const WindowSum& whole, const WindowSum& one) {
  EXPECT_EQ(whole.step, one.step);
  EXPECT_EQ(whole.micro_batches, one.micro_batches);
  EXPECT_EQ(whole.window, one.window);
  EXPECT_EQ(whole.weight, one.weight);
  EXPECT_EQ(whole.divisor, one.divisor);
  EXPECT_EQ(whole.end_of_data, one.end_of_data);
  EXPECT_EQ(whole.rescale, one.rescale);
  EXPECT_EQ(whole.scheduler_steps, one.scheduler_steps);
}

// How the end of an epoch's data is known.
enum class End { kBeforehand, kWithTheLastOne };

// Trains for three epochs of so many micro-batches in both ways. `windows` gets
// the lengths of the windows that were begun as a whole.
void RunBoth(const schedule::Plan& plan, int epoch, End end,
             std::vector<int>* windows) {
  Accumulator whole = Make(plan);
  Accumulator single = Make(plan);
  int drawn = 0;
  for (int i = 0; i < 3; ++i) {
    if (end == End::kBeforehand) {
      ASSERT_OK(whole.BeginEpoch(epoch));
      ASSERT_OK(single.BeginEpoch(epoch));
    } else {
      ASSERT_OK(whole.BeginEpoch(int64_t{1} << 40));
      ASSERT_OK(single.BeginEpoch(int64_t{1} << 40));
    }
    for (int left = epoch; left > 0;) {
      const int due = whole.micro_batches_due();
      std::vector<Accumulator::Begin> begins(std::min(due, left));
      for (Accumulator::Begin& begin : begins) {
        begin.weight = ++drawn % 4;  // now and then 0
        begin.end_of_data = end == End::kWithTheLastOne && --left == 0;
        if (end == End::kBeforehand) --left;
      }
      ASSERT_OK_AND_ASSIGN(const std::vector<MicroBatch> begun,
                           whole.BeginWindow(kTrain, begins));
      ASSERT_EQ(begun.size(), begins.size());
      windows->push_back(static_cast<int>(begun.size()));
      for (size_t k = 0; k < begins.size(); ++k) {
        ASSERT_OK_AND_ASSIGN(const MicroBatch one,
                             single.BeginMicroBatch(kTrain, begins[k]));
        ExpectSame(begun[k], one);
      }
      ExpectSame(whole.Sum(), single.Sum());
    }
    EXPECT_EQ(whole.micro_batches_due(), 0);
    ExpectSame(whole.EndOfData(), single.EndOfData());
  }
}

TEST(AccumulatorWindowTest, EveryTailAndWeightIsThatOfSingleMicroBatches) {
  using schedule::TailPolicy;
  for (const auto weighting :
       {schedule::Weighting::kMean, schedule::Weighting::kTokens}) {
    for (const auto end : {End::kBeforehand, End::kWithTheLastOne}) {
      const auto run = [&](TailPolicy tail) {
        std::vector<int> windows;
        RunBoth(PlanOf(4, tail, weighting), 6, end, &windows);
        return windows;
      };
      using testing::ElementsAre;
      EXPECT_THAT(run(TailPolicy::kFlush), ElementsAre(4, 2, 4, 2, 4, 2));
      EXPECT_THAT(run(TailPolicy::kDrop), ElementsAre(4, 2, 4, 2, 4, 2));
      // The first half of a window, and the other one in the next epoch.
      EXPECT_THAT(run(TailPolicy::kCarry), ElementsAre(4, 2, 2, 4, 4, 2));
    }
  }
}

TEST(AccumulatorWindowTest, AWindowThatDoesNotEndExchangesNothing) {
  Accumulator accumulator = Make(
      PlanOf(4, schedule::TailPolicy::kCarry, schedule::Weighting::kTokens));
  ASSERT_OK_AND_ASSIGN(
      std::vector<MicroBatch> begun,
      accumulator.BeginWindow(kTrain, {{8, false}, {2, true}}));
  EXPECT_FALSE(begun.back().exchange);
  EXPECT_EQ(accumulator.Sum().micro_batches, 0);
  EXPECT_EQ(accumulator.micro_batches_due(), 0);
  ASSERT_OK(accumulator.BeginEpoch(10));
  EXPECT_EQ(accumulator.micro_batches_due(), 2);
  ASSERT_OK_AND_ASSIGN(
      begun, accumulator.BeginWindow(kTrain, {{4, false}, {6, false}}));
  EXPECT_TRUE(begun.back().exchange);
  EXPECT_EQ(begun[0].micro, 2);
  EXPECT_EQ(begun[0].loss_scale, 4.0 / (8 * 4));
  EXPECT_EQ(accumulator.Sum().micro_batches, 4);
  EXPECT_EQ(accumulator.Sum().weight, 20);
  EXPECT_EQ(accumulator.Sum().divisor, 32);
}

TEST(AccumulatorWindowTest, AnotherNumberIsRefusedAndBeginsNothing) {
  Accumulator accumulator =
      Make(PlanOf(3, schedule::TailPolicy::kFlush, schedule::Weighting::kMean));
  using Begins = std::vector<Accumulator::Begin>;
  for (const size_t count : {0, 2, 4}) {
    EXPECT_THAT(accumulator.BeginWindow(kTrain, Begins(count)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("and 3 are due")));
  }
  Begins early(3);
  early[1].end_of_data = true;
  EXPECT_THAT(accumulator.BeginWindow(kTrain, early),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("after the end of its data")));
  EXPECT_EQ(accumulator.micro_batches_due(), 3);
  ASSERT_OK_AND_ASSIGN(const std::vector<MicroBatch> begun,
                       accumulator.BeginWindow(kTrain, Begins(3)));
  EXPECT_EQ(begun[0].micro, 0);
  EXPECT_EQ(begun[0].step, 0);
}

TEST(AccumulatorWindowTest, TheEndOfDataAndOfTheStepsIsRefused) {
  schedule::Plan plan =
      PlanOf(2, schedule::TailPolicy::kFlush, schedule::Weighting::kMean);
  plan.terms.max_steps = 2;
  Accumulator accumulator = Make(plan);
  using Begins = std::vector<Accumulator::Begin>;
  ASSERT_OK(accumulator.BeginEpoch(2));
  ASSERT_OK(accumulator.BeginWindow(kTrain, Begins(2)));
  EXPECT_THAT(accumulator.BeginWindow(kTrain, Begins(2)),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("after the end of its data")));
  ASSERT_OK(accumulator.BeginEpoch(2));
  ASSERT_OK(accumulator.BeginWindow(kTrain, Begins(2)));
  EXPECT_TRUE(accumulator.finished());
  ASSERT_OK(accumulator.BeginEpoch(2));
  EXPECT_THAT(accumulator.BeginWindow(kTrain, Begins(2)),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("max_steps")));
}

TEST(AccumulatorWindowTest, WeightsThatAreNoneAreRefused) {
  Accumulator accumulator = Make(
      PlanOf(2, schedule::TailPolicy::kFlush, schedule::Weighting::kTokens));
  EXPECT_THAT(accumulator.BeginWindow(kTrain, {{3, false}, {-1, false}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a micro-batch of weight -1")));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<MicroBatch> begun,
      accumulator.BeginWindow(kTrain, {{5, false}, {5, false}}));
  EXPECT_EQ(begun[1].loss_scale, 0.5);
}

TEST(AccumulatorWindowTest, MicroBatchesThatAreExchangedEachAreNoWhole) {
  schedule::Plan plan =
      PlanOf(2, schedule::TailPolicy::kFlush, schedule::Weighting::kMean);
  plan.terms.sync_each_batch = true;
  Accumulator accumulator = Make(plan);
  EXPECT_THAT(
      accumulator.BeginWindow(kTrain, std::vector<Accumulator::Begin>(2)),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("sync_each_batch")));
}

}  // namespace
}  // namespace coxswain::accumulator_window_test
