#include "client/accumulate/accumulator.h"

#include <vector>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

Accumulator Make(int steps) { return Accumulator::Create(steps).value(); }

TEST(AccumulatorTest, SyncsOnTheLastMicroBatchOfEachWindow) {
  Accumulator accumulator = Make(3);
  for (int i = 0; i < 9; ++i) {
    ASSERT_OK_AND_ASSIGN(const MicroBatch micro, accumulator.BeginMicroBatch());
    EXPECT_EQ(micro.step, i / 3);
    EXPECT_EQ(micro.micro, i % 3);
    EXPECT_EQ(micro.window, 3);
    EXPECT_EQ(micro.sync, i % 3 == 2);
  }
}

TEST(AccumulatorTest, ATailOfKnownLengthIsAShorterWindow) {
  Accumulator accumulator = Make(4);
  ASSERT_OK(accumulator.BeginEpoch(6));
  std::vector<int> windows;
  std::vector<bool> syncs;
  for (int i = 0; i < 6; ++i) {
    ASSERT_OK_AND_ASSIGN(const MicroBatch micro, accumulator.BeginMicroBatch());
    windows.push_back(micro.window);
    syncs.push_back(micro.sync);
  }
  EXPECT_THAT(windows, testing::ElementsAre(4, 4, 4, 4, 2, 2));
  EXPECT_THAT(syncs,
              testing::ElementsAre(false, false, false, true, false, true));
  EXPECT_THAT(accumulator.BeginMicroBatch(),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("\"train\"")));
  EXPECT_EQ(accumulator.EndOfData().micros, 0);
  ASSERT_OK(accumulator.BeginEpoch(4));
  ASSERT_OK_AND_ASSIGN(const MicroBatch micro, accumulator.BeginMicroBatch());
  EXPECT_EQ(micro.step, 2);
}

TEST(AccumulatorTest, ATailOfUnknownLengthSaysHowToRescale) {
  Accumulator accumulator = Make(4);
  for (int i = 0; i < 7; ++i) ASSERT_OK(accumulator.BeginMicroBatch());
  EXPECT_THAT(accumulator.CheckOptimizerStep(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("after 3 of 4 micro-batches of step 1")));
  const Tail tail = accumulator.EndOfData();
  EXPECT_EQ(tail.step, 1);
  EXPECT_EQ(tail.micros, 3);
  EXPECT_DOUBLE_EQ(tail.rescale, 4.0 / 3.0);
  EXPECT_OK(accumulator.CheckOptimizerStep());
  EXPECT_EQ(accumulator.EndOfData().micros, 0);
}

TEST(AccumulatorTest, StreamsAreCountedApart) {
  Accumulator accumulator = Make(2);
  ASSERT_OK(accumulator.BeginMicroBatch());
  for (int i = 0; i < 3; ++i) ASSERT_OK(accumulator.BeginMicroBatch("eval"));
  accumulator.EndOfData("eval");
  ASSERT_OK_AND_ASSIGN(const MicroBatch micro, accumulator.BeginMicroBatch());
  EXPECT_TRUE(micro.sync);
  EXPECT_EQ(micro.step, 0);
}

TEST(AccumulatorTest, AnOptimizerStepNeedsExchangedGradients) {
  Accumulator accumulator = Make(2);
  EXPECT_THAT(accumulator.CheckOptimizerStep(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("before its first micro-batch")));
  ASSERT_OK(accumulator.BeginMicroBatch());
  EXPECT_FALSE(accumulator.CheckOptimizerStep().ok());
  ASSERT_OK(accumulator.BeginMicroBatch());
  EXPECT_OK(accumulator.CheckOptimizerStep());
  ASSERT_OK(accumulator.BeginMicroBatch());
  EXPECT_FALSE(accumulator.CheckOptimizerStep().ok());
}

TEST(AccumulatorTest, GoesOnFromASavedPosition) {
  Accumulator first = Make(2);
  ASSERT_OK(first.BeginMicroBatch());
  EXPECT_THAT(first.Position(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("micro-batch 1 of 2")));
  EXPECT_THAT(first.BeginEpoch(5),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("after 1 of 2")));
  ASSERT_OK(first.BeginMicroBatch());
  ASSERT_OK_AND_ASSIGN(const auto position, first.Position());

  Accumulator second = Make(3);
  ASSERT_OK(second.Restore(position));
  ASSERT_OK_AND_ASSIGN(const MicroBatch micro, second.BeginMicroBatch());
  EXPECT_EQ(micro.step, 1);
  EXPECT_EQ(micro.micro, 0);
  EXPECT_THAT(second.Restore({{"train", -1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train")));
}

TEST(AccumulatorTest, RefusesLessThanOneStep) {
  EXPECT_THAT(
      Accumulator::Create(0),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 1")));
}

}  // namespace
}  // namespace coxswain
