#include "client/accumulate/accumulator.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"

namespace coxswain::accumulator_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

schedule::Plan PlanOf(
    int steps, schedule::TailPolicy tail = schedule::TailPolicy::kFlush) {
  schedule::Plan plan;
  plan.version = 1;
  plan.accumulation_steps = steps;
  plan.terms.tail = tail;
  return plan;
}

Accumulator Make(const schedule::Plan& plan, int rank = 0, int world_size = 1) {
  Accumulator::Options options;
  options.plan = plan;
  options.rank = rank;
  options.world_size = world_size;
  return Accumulator::Create(options).value();
}

Accumulator Make(int steps) { return Accumulator::Create(steps).value(); }

// Begins so many, which the plan has to allow. The last one's answer.
MicroBatch BeginMany(Accumulator& accumulator, int count,
                     const std::string& stream = "train") {
  MicroBatch micro;
  for (int i = 0; i < count; ++i) {
    const auto begun = accumulator.BeginMicroBatch(stream);
    EXPECT_OK(begun.status());
    if (begun.ok()) micro = *begun;
  }
  return micro;
}

MicroBatch BeginLast(Accumulator& accumulator) {
  Accumulator::Begin begin;
  begin.end_of_data = true;
  const auto begun = accumulator.BeginMicroBatch("train", begin);
  EXPECT_OK(begun.status());
  return begun.value_or(MicroBatch());
}

auto IsOutOfData() {
  return StatusIs(absl::StatusCode::kOutOfRange,
                  HasSubstr("\"train\" begins a micro-batch after the end"));
}

TEST(AccumulatorTest, SyncsOnTheLastMicroBatchOfEachWindow) {
  Accumulator accumulator = Make(3);
  for (int i = 0; i < 9; ++i) {
    ASSERT_OK_AND_ASSIGN(const MicroBatch micro, accumulator.BeginMicroBatch());
    EXPECT_EQ(micro.step, i / 3);
    EXPECT_EQ(micro.micro, i % 3);
    EXPECT_EQ(micro.window, 3);
    EXPECT_EQ(micro.sync, i % 3 == 2);
    EXPECT_EQ(micro.exchange, micro.sync);
    EXPECT_DOUBLE_EQ(micro.loss_scale, 1.0 / 3);
  }
  const WindowSum sum = accumulator.Sum();
  EXPECT_EQ(sum.step, 2);
  EXPECT_EQ(sum.micro, 0);
  EXPECT_EQ(sum.micro_batches, 3);
  EXPECT_EQ(sum.window, 3);
  EXPECT_EQ(sum.weight, 3);
  EXPECT_EQ(sum.divisor, 3);
  EXPECT_EQ(sum.rescale, 1);
  EXPECT_FALSE(sum.end_of_data);
}

TEST(AccumulatorTest, ThereIsNothingToExchangeInTheMiddleOfAWindow) {
  Accumulator accumulator = Make(2);
  EXPECT_EQ(accumulator.Sum().micro_batches, 0);
  BeginMany(accumulator, 3);
  EXPECT_EQ(accumulator.Sum().micro_batches, 0);
}

TEST(AccumulatorTest, AnOptimizerStepNeedsExchangedGradients) {
  Accumulator accumulator = Make(2);
  EXPECT_THAT(accumulator.CheckOptimizerStep(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("without a micro-batch")));
  BeginMany(accumulator, 1);
  EXPECT_THAT(accumulator.CheckOptimizerStep(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("after 1 of 2 micro-batches of step 0")));
  BeginMany(accumulator, 1);
  EXPECT_OK(accumulator.CheckOptimizerStep());
  BeginMany(accumulator, 1);
  EXPECT_FALSE(accumulator.CheckOptimizerStep().ok());
}

TEST(AccumulatorTest, RefusesPlansThatCannotBe) {
  EXPECT_THAT(
      Accumulator::Create(0),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 1")));
  Accumulator::Options options;
  options.rank = 2;
  options.world_size = 2;
  EXPECT_THAT(Accumulator::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 2 of 2 ranks")));
  options.rank = 0;
  options.plan.terms.sync_each_batch = true;
  options.plan.terms.weighting = schedule::Weighting::kTokens;
  EXPECT_THAT(Accumulator::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sync_each_batch")));
}

TEST(AccumulatorTailTest, FlushOfAKnownLengthIsAShorterWindow) {
  Accumulator accumulator = Make(4);
  ASSERT_OK(accumulator.BeginEpoch(6));
  std::vector<int> windows;
  std::vector<bool> syncs;
  for (int i = 0; i < 6; ++i) {
    const MicroBatch micro = BeginMany(accumulator, 1);
    windows.push_back(micro.window);
    syncs.push_back(micro.sync);
  }
  EXPECT_THAT(windows, ElementsAre(4, 4, 4, 4, 2, 2));
  EXPECT_THAT(syncs, ElementsAre(false, false, false, true, false, true));
  EXPECT_EQ(accumulator.Sum().divisor, 2);
  EXPECT_EQ(accumulator.Sum().rescale, 1);
  EXPECT_TRUE(accumulator.Sum().end_of_data);
  EXPECT_THAT(accumulator.BeginMicroBatch(), IsOutOfData());
  EXPECT_EQ(accumulator.EndOfData().micro_batches, 0);
  ASSERT_OK(accumulator.BeginEpoch(4));
  EXPECT_EQ(BeginMany(accumulator, 1).step, 2);
}

TEST(AccumulatorTailTest, FlushOfAnUnknownLengthReturnsTheRescaleFactor) {
  Accumulator accumulator = Make(4);
  BeginMany(accumulator, 7);
  const WindowSum tail = accumulator.EndOfData();
  EXPECT_EQ(tail.step, 1);
  EXPECT_EQ(tail.micro_batches, 3);
  EXPECT_EQ(tail.weight, 3);
  EXPECT_EQ(tail.divisor, 4);
  EXPECT_DOUBLE_EQ(tail.rescale, 4.0 / 3.0);
  EXPECT_TRUE(tail.end_of_data);
  EXPECT_EQ(tail.scheduler_steps, 1);
  EXPECT_OK(accumulator.CheckOptimizerStep());
  EXPECT_EQ(accumulator.EndOfData().micro_batches, 0);
  EXPECT_EQ(BeginMany(accumulator, 1).step, 2);
}

TEST(AccumulatorTailTest, FlushClosesTheWindowWithTheLastMicroBatch) {
  Accumulator accumulator = Make(4);
  BeginMany(accumulator, 2);
  const MicroBatch last = BeginLast(accumulator);
  EXPECT_TRUE(last.sync);
  EXPECT_EQ(last.window, 4);
  EXPECT_EQ(accumulator.Sum().micro_batches, 3);
  EXPECT_EQ(accumulator.Sum().divisor, 4);
  EXPECT_DOUBLE_EQ(accumulator.Sum().rescale, 4.0 / 3.0);
  EXPECT_TRUE(accumulator.Sum().end_of_data);
  EXPECT_OK(accumulator.CheckOptimizerStep());
  EXPECT_THAT(accumulator.BeginMicroBatch(), IsOutOfData());
  EXPECT_EQ(accumulator.EndOfData().micro_batches, 0);

  // A window of its last micro-batch alone is planned as that.
  EXPECT_EQ(BeginLast(accumulator).loss_scale, 1);
  EXPECT_EQ(accumulator.Sum().rescale, 1);
  EXPECT_TRUE(accumulator.Sum().end_of_data);
}

TEST(AccumulatorTailTest, DataThatFillsItsWindowsCutsNoneShort) {
  for (const auto tail :
       {schedule::TailPolicy::kFlush, schedule::TailPolicy::kCarry,
        schedule::TailPolicy::kDrop}) {
    Accumulator accumulator = Make(PlanOf(2, tail));
    BeginMany(accumulator, 1);
    EXPECT_TRUE(BeginLast(accumulator).sync);
    EXPECT_FALSE(accumulator.Sum().end_of_data);
    EXPECT_EQ(accumulator.Sum().rescale, 1);
    EXPECT_EQ(accumulator.EndOfData().micro_batches, 0);
  }
}

TEST(AccumulatorTailTest, CarryGoesOnWithTheWindowInTheNextEpoch) {
  Accumulator accumulator = Make(PlanOf(4, schedule::TailPolicy::kCarry));
  ASSERT_OK(accumulator.BeginEpoch(6));
  EXPECT_EQ(BeginMany(accumulator, 6).window, 4);
  EXPECT_THAT(accumulator.BeginMicroBatch(), IsOutOfData());
  EXPECT_EQ(accumulator.EndOfData().micro_batches, 0);
  EXPECT_FALSE(accumulator.CheckOptimizerStep().ok());

  ASSERT_OK(accumulator.BeginEpoch(6));
  EXPECT_FALSE(BeginMany(accumulator, 1).sync);
  const MicroBatch micro = BeginMany(accumulator, 1);
  EXPECT_TRUE(micro.sync);
  EXPECT_EQ(micro.step, 1);
  EXPECT_EQ(micro.micro, 3);
  EXPECT_EQ(accumulator.Sum().micro_batches, 4);
  EXPECT_FALSE(accumulator.Sum().end_of_data);
}

TEST(AccumulatorTailTest, CarryNeedsNoLengthsAndNoEndOfData) {
  Accumulator accumulator = Make(PlanOf(3, schedule::TailPolicy::kCarry));
  BeginMany(accumulator, 1);
  EXPECT_FALSE(BeginLast(accumulator).sync);
  EXPECT_THAT(accumulator.BeginMicroBatch(), IsOutOfData());
  accumulator.EndOfData();
  EXPECT_TRUE(BeginMany(accumulator, 1).sync);
}

// As where the length is unknown: a program need not know which are dropped.
TEST(AccumulatorTailTest, DropBeginsWhatFillsNoWindowToo) {
  for (const bool each : {false, true}) {
    schedule::Plan plan = PlanOf(4, schedule::TailPolicy::kDrop);
    plan.terms.sync_each_batch = each;
    Accumulator accumulator = Make(plan);
    ASSERT_OK(accumulator.BeginEpoch(6));
    EXPECT_TRUE(BeginMany(accumulator, 4).sync);
    for (int i = 0; i < 2; ++i) {
      const MicroBatch micro = BeginMany(accumulator, 1);
      EXPECT_FALSE(micro.sync);
      EXPECT_FALSE(micro.exchange) << "it would be forgotten";
      EXPECT_EQ(micro.step, 1);
    }
    EXPECT_THAT(accumulator.BeginMicroBatch(), IsOutOfData());
    const WindowSum rest = accumulator.EndOfData();
    EXPECT_EQ(rest.micro_batches, 2);
    EXPECT_EQ(rest.exchanged, 0);
    EXPECT_FALSE(accumulator.CheckOptimizerStep().ok());
    ASSERT_OK(accumulator.BeginEpoch(4));
    EXPECT_EQ(BeginMany(accumulator, 1).exchange, each);
    const MicroBatch last = BeginMany(accumulator, 3);
    EXPECT_TRUE(last.sync);
    EXPECT_EQ(last.step, 1) << "what was dropped is no step";
  }
}

TEST(AccumulatorTailTest, DropReturnsWhatToForget) {
  Accumulator accumulator = Make(PlanOf(4, schedule::TailPolicy::kDrop));
  BeginMany(accumulator, 5);
  EXPECT_FALSE(BeginLast(accumulator).sync);
  EXPECT_THAT(accumulator.BeginEpoch(4),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("after 2 of 4")));
  EXPECT_EQ(accumulator.EndOfData().micro_batches, 2);
  EXPECT_FALSE(accumulator.CheckOptimizerStep().ok());
  const MicroBatch next = BeginMany(accumulator, 1);
  EXPECT_EQ(next.step, 1) << "what was dropped is no step";
  EXPECT_EQ(next.micro, 0);
}

TEST(AccumulatorTailTest, AnEpochInTheMiddleOfAWindowIsRefused) {
  Accumulator accumulator = Make(2);
  BeginMany(accumulator, 1);
  EXPECT_THAT(accumulator.BeginEpoch(5),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("after 1 of 2")));
  EXPECT_THAT(accumulator.BeginEpoch(-1, "eval"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
}

TEST(AccumulatorTailTest, ADroppedWindowIsNoStepWhateverTheTail) {
  for (const auto tail :
       {schedule::TailPolicy::kFlush, schedule::TailPolicy::kCarry,
        schedule::TailPolicy::kDrop}) {
    Accumulator accumulator = Make(PlanOf(3, tail));
    BeginMany(accumulator, 5);
    accumulator.DropWindow();
    EXPECT_FALSE(accumulator.CheckOptimizerStep().ok());
    const MicroBatch micro = BeginMany(accumulator, 3);
    EXPECT_TRUE(micro.sync);
    EXPECT_EQ(micro.step, 1);
    EXPECT_EQ(accumulator.Sum().weight, 3);
  }
}

TEST(AccumulatorTest, ARankWithoutDataCountsTheStepsItTakesPartIn) {
  schedule::Plan plan = PlanOf(3);
  plan.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  Accumulator accumulator = Make(plan);
  BeginMany(accumulator, 3);
  EXPECT_EQ(accumulator.EndOfData().micro_batches, 0);
  const WindowSum none = accumulator.StepWithoutData();
  EXPECT_EQ(none.step, 1);
  EXPECT_EQ(none.micro_batches, 0);
  EXPECT_EQ(none.weight, 0);
  EXPECT_EQ(none.window, 3);
  EXPECT_TRUE(none.end_of_data);
  EXPECT_OK(accumulator.CheckOptimizerStep());
  EXPECT_EQ(accumulator.StepWithoutData().step, 2);
  EXPECT_EQ(BeginMany(accumulator, 1).step, 3);
}

TEST(AccumulatorTest, MaxStepsEndTheTrainingAndNothingElse) {
  schedule::Plan plan = PlanOf(2);
  plan.terms.max_steps = 2;
  Accumulator accumulator = Make(plan);
  EXPECT_FALSE(accumulator.finished());
  BeginMany(accumulator, 3);
  EXPECT_FALSE(accumulator.finished());
  BeginMany(accumulator, 1);
  EXPECT_TRUE(accumulator.finished());
  EXPECT_OK(accumulator.CheckOptimizerStep());
  EXPECT_THAT(accumulator.BeginMicroBatch(),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("the 2 steps of the plan's max_steps")));
  BeginMany(accumulator, 9, "eval");
  EXPECT_FALSE(accumulator.finished("eval"));
  plan.terms.max_steps = 3;
  ASSERT_OK(accumulator.ChangePlan(plan));
  EXPECT_FALSE(accumulator.finished());
  BeginMany(accumulator, 2);
}

TEST(AccumulatorTest, StreamsAreCountedApart) {
  Accumulator accumulator = Make(2);
  ASSERT_OK(accumulator.BeginEpoch(7));
  BeginMany(accumulator, 1);
  ASSERT_OK(accumulator.BeginEpoch(3, "eval"));
  BeginMany(accumulator, 3, "eval");
  EXPECT_FALSE(accumulator.BeginMicroBatch("eval").ok());
  accumulator.EndOfData("eval");
  EXPECT_FALSE(accumulator.CheckOptimizerStep().ok());
  const MicroBatch micro = BeginMany(accumulator, 1);
  EXPECT_TRUE(micro.sync);
  EXPECT_EQ(micro.step, 0);
  EXPECT_EQ(accumulator.Sum().micro_batches, 2);
  EXPECT_EQ(accumulator.Sum("eval").micro_batches, 1);
  BeginMany(accumulator, 5);
  EXPECT_TRUE(accumulator.Sum().end_of_data);
}

TEST(AccumulatorTest, WithSyncEachBatchAllAreExchangedAndWindowsStay) {
  schedule::Plan plan = PlanOf(3);
  plan.terms.sync_each_batch = true;
  Accumulator accumulator = Make(plan);
  for (int i = 0; i < 6; ++i) {
    const MicroBatch micro = BeginMany(accumulator, 1);
    EXPECT_TRUE(micro.exchange);
    EXPECT_EQ(micro.sync, i % 3 == 2);
    EXPECT_DOUBLE_EQ(micro.loss_scale, 1.0 / 3);
    EXPECT_EQ(micro.scheduler_steps, micro.sync ? 1 : 0);
    const WindowSum sum = accumulator.Sum();
    EXPECT_EQ(sum.step, i / 3);
    EXPECT_EQ(sum.micro, i % 3);
    EXPECT_EQ(sum.micro_batches, 1);
    EXPECT_EQ(sum.weight, 1);
    EXPECT_EQ(sum.divisor, 1);
    EXPECT_EQ(sum.exchanged, i % 3);
    EXPECT_EQ(accumulator.CheckOptimizerStep().ok(), micro.sync);
  }
}

TEST(AccumulatorTest, WithSyncEachBatchTheRestHasBeenExchanged) {
  schedule::Plan plan = PlanOf(3);
  plan.terms.sync_each_batch = true;
  Accumulator accumulator = Make(plan);
  BeginMany(accumulator, 5);
  const WindowSum rest = accumulator.EndOfData();
  EXPECT_EQ(rest.micro_batches, 0);
  EXPECT_EQ(rest.exchanged, 2);
  EXPECT_DOUBLE_EQ(rest.rescale, 1.5);
  EXPECT_OK(accumulator.CheckOptimizerStep());
}

TEST(AccumulatorTest, WithSyncEachBatchTheLastExchangeEndsAShortWindow) {
  schedule::Plan plan = PlanOf(3);
  plan.terms.sync_each_batch = true;
  Accumulator known = Make(plan);
  ASSERT_OK(known.BeginEpoch(5));
  BeginMany(known, 4);
  EXPECT_EQ(known.Sum().window, 2);
  EXPECT_FALSE(known.Sum().end_of_data) << "one is yet to come";
  BeginMany(known, 1);
  EXPECT_TRUE(known.Sum().end_of_data);
  Accumulator flagged = Make(plan);
  BeginMany(flagged, 4);
  EXPECT_FALSE(flagged.Sum().end_of_data);
  BeginLast(flagged);
  EXPECT_TRUE(flagged.Sum().end_of_data);
}

TEST(AccumulatorResizeTest, TheGlobalBatchIsSharedOut) {
  schedule::Plan plan = PlanOf(3);
  plan.terms.on_resize = schedule::OnResize::kKeepGlobalBatch;
  plan.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  plan.global_micro_batches = 8;
  std::vector<int> windows;
  for (int rank = 0; rank < 3; ++rank) {
    Accumulator accumulator = Make(plan, rank, 3);
    windows.push_back(BeginMany(accumulator, 1).window);
  }
  EXPECT_THAT(windows, ElementsAre(3, 3, 2));
  EXPECT_TRUE(plan.needs_header(3));
}

TEST(AccumulatorResizeTest, WhatIsDroppedGoesByTheRanksOwnWindow) {
  schedule::Plan plan = PlanOf(3, schedule::TailPolicy::kDrop);
  plan.terms.on_resize = schedule::OnResize::kKeepGlobalBatch;
  plan.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  plan.global_micro_batches = 5;
  Accumulator first = Make(plan, 0, 2);
  Accumulator second = Make(plan, 1, 2);
  for (Accumulator* each : {&first, &second}) ASSERT_OK(each->BeginEpoch(5));
  EXPECT_EQ(BeginMany(first, 5).window, 3);
  EXPECT_EQ(first.EndOfData().micro_batches, 2);
  EXPECT_EQ(BeginMany(second, 5).window, 2);
  EXPECT_EQ(second.EndOfData().micro_batches, 1);
}

int64_t SchedulerSteps(schedule::SchedulerUnit unit, int rank,
                       int micro_batches) {
  schedule::Plan plan = PlanOf(4);
  plan.terms.adjust_scheduler = unit;
  Accumulator accumulator = Make(plan, rank, 3);
  EXPECT_OK(accumulator.BeginEpoch(micro_batches));
  return BeginMany(accumulator, micro_batches).scheduler_steps;
}

TEST(AccumulatorSchedulerTest, AStepCountsByThePlansAdjustScheduler) {
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(SchedulerSteps(schedule::SchedulerUnit::kStep, rank, 4), 1);
    EXPECT_EQ(SchedulerSteps(schedule::SchedulerUnit::kBatch, rank, 4), 4);
    EXPECT_EQ(SchedulerSteps(schedule::SchedulerUnit::kGlobalBatch, rank, 4),
              12);
    EXPECT_EQ(SchedulerSteps(schedule::SchedulerUnit::kStep, rank, 3), 1);
    EXPECT_EQ(SchedulerSteps(schedule::SchedulerUnit::kBatch, rank, 3), 3);
    EXPECT_EQ(SchedulerSteps(schedule::SchedulerUnit::kGlobalBatch, rank, 3),
              9);
  }
}

TEST(AccumulatorSchedulerTest, OnlyOptimizerStepsCount) {
  EXPECT_EQ(SchedulerSteps(schedule::SchedulerUnit::kBatch, 0, 6), 2);
  Accumulator accumulator = Make(2);
  EXPECT_EQ(BeginMany(accumulator, 1).scheduler_steps, 0);
}

TEST(AccumulatorSchedulerTest, WindowsThatAreCutShortCountWhatTheyHave) {
  schedule::Plan plan = PlanOf(4);
  plan.terms.adjust_scheduler = schedule::SchedulerUnit::kGlobalBatch;
  Accumulator accumulator = Make(plan, 0, 2);
  BeginMany(accumulator, 2);
  EXPECT_EQ(BeginLast(accumulator).scheduler_steps, 6);
  accumulator.EndOfData();
  BeginMany(accumulator, 1);
  EXPECT_EQ(accumulator.EndOfData().scheduler_steps, 2);
}

// Ranks whose schedulers count differently would drift apart.
TEST(AccumulatorSchedulerTest, WhereRanksDifferAllCountAlike) {
  schedule::Plan plan = PlanOf(4);
  plan.terms.adjust_scheduler = schedule::SchedulerUnit::kBatch;
  plan.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  Accumulator full = Make(plan, 0, 2);
  Accumulator cut = Make(plan, 1, 2);
  EXPECT_EQ(BeginMany(full, 4).scheduler_steps, 4);
  EXPECT_EQ(BeginLast(cut).scheduler_steps, 4);
  EXPECT_EQ(cut.StepWithoutData().scheduler_steps, 4);

  plan = PlanOf(4);
  plan.terms.on_resize = schedule::OnResize::kKeepGlobalBatch;
  plan.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  plan.global_micro_batches = 5;
  for (int rank = 0; rank < 2; ++rank) {
    plan.terms.adjust_scheduler = schedule::SchedulerUnit::kBatch;
    Accumulator own = Make(plan, rank, 2);
    EXPECT_EQ(BeginMany(own, 3 - rank).scheduler_steps, 3);
    plan.terms.adjust_scheduler = schedule::SchedulerUnit::kGlobalBatch;
    Accumulator all = Make(plan, rank, 2);
    EXPECT_EQ(BeginMany(all, 3 - rank).scheduler_steps, 5);
  }
}

TEST(AccumulatorPlanTest, AChangeCountsForTheNextWindow) {
  Accumulator accumulator = Make(2);
  BeginMany(accumulator, 2);
  ASSERT_OK(accumulator.ChangePlan(PlanOf(3)));
  EXPECT_EQ(accumulator.plan().version, 1);
  const MicroBatch micro = BeginMany(accumulator, 3);
  EXPECT_TRUE(micro.sync);
  EXPECT_EQ(micro.step, 1);
  EXPECT_EQ(micro.window, 3);
}

TEST(AccumulatorPlanTest, AChangeInTheMiddleOfAWindowIsRefused) {
  Accumulator accumulator = Make(2);
  BeginMany(accumulator, 1);
  EXPECT_THAT(accumulator.ChangePlan(PlanOf(3)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("plan 1 comes after 1 of 2 micro-batches")));
  EXPECT_TRUE(BeginMany(accumulator, 1).sync);
  EXPECT_THAT(accumulator.ChangePlan(PlanOf(0)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("accumulation_steps")));
  EXPECT_EQ(BeginMany(accumulator, 1).window, 2);
}

TEST(AccumulatorPlanTest, CarriedWindowsKeepTheirLength) {
  Accumulator accumulator = Make(PlanOf(4, schedule::TailPolicy::kCarry));
  BeginMany(accumulator, 1);
  ASSERT_OK(accumulator.ChangePlan(PlanOf(2, schedule::TailPolicy::kCarry)));
  EXPECT_FALSE(BeginMany(accumulator, 2).sync);
  EXPECT_TRUE(BeginMany(accumulator, 1).sync);
  EXPECT_EQ(accumulator.Sum().divisor, 4);
  EXPECT_EQ(BeginMany(accumulator, 1).window, 2);

  schedule::Plan tokens = PlanOf(4, schedule::TailPolicy::kCarry);
  tokens.terms.weighting = schedule::Weighting::kTokens;
  EXPECT_THAT(accumulator.ChangePlan(tokens),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("weighs or exchanges them differently")));
}

TEST(AccumulatorPlanTest, OtherStreamsWindowsAreNotInTheWay) {
  Accumulator accumulator = Make(3);
  BeginMany(accumulator, 1, "eval");
  schedule::Plan plan = PlanOf(2);
  plan.terms.weighting = schedule::Weighting::kTokens;
  ASSERT_OK(accumulator.ChangePlan(plan));
  EXPECT_TRUE(BeginMany(accumulator, 2, "eval").sync);
  EXPECT_EQ(accumulator.Sum("eval").divisor, 3);
  EXPECT_EQ(accumulator.BeginMicroBatch("train", {5, false})->window, 2);
}

TEST(AccumulatorTest, APositionHoldsTheWholeWindowsOfOtherStreams) {
  Accumulator first = Make(2);
  BeginMany(first, 4);
  BeginMany(first, 3, "eval");
  ASSERT_OK_AND_ASSIGN(const auto position, first.Position());
  EXPECT_THAT(position,
              UnorderedElementsAre(Pair("train", 2), Pair("eval", 1)));

  Accumulator second = Make(2);
  ASSERT_OK(second.Restore(position));
  const MicroBatch micro = BeginMany(second, 1, "eval");
  EXPECT_EQ(micro.step, 1);
  EXPECT_EQ(micro.micro, 0) << "the window that was begun begins anew";
}

TEST(AccumulatorTest, GoesOnFromASavedPosition) {
  Accumulator first = Make(2);
  BeginMany(first, 1);
  EXPECT_THAT(first.Position(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("micro-batch 1 of 2")));
  BeginMany(first, 1);
  first.StepWithoutData();
  ASSERT_OK_AND_ASSIGN(const auto position, first.Position());

  Accumulator second = Make(3);
  ASSERT_OK(second.BeginEpoch(1));
  ASSERT_OK(second.Restore(position));
  const MicroBatch micro = BeginMany(second, 1);
  EXPECT_EQ(micro.step, 2);
  EXPECT_EQ(micro.micro, 0);
  EXPECT_EQ(micro.window, 3);
  EXPECT_THAT(second.Restore({{"train", -1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train")));
}

}  // namespace
}  // namespace coxswain::accumulator_test
