#include "client/schedule/step_timings.h"

#include "gtest/gtest.h"

namespace coxswain {
namespace {

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(1000 + seconds);
}

// Returns the next heartbeat.
v1::Heartbeat Beat(StepTimings* timings) {
  v1::Heartbeat beat;
  timings->AddTo(&beat);
  return beat;
}

StepTimings::Traffic Nothing() { return {}; }

// A step from `from` on: exchanged from 6 to 8 s after it, and decided at 9.
void Step(int64_t step, double from, StepTimings* timings,
          StepTimings::Traffic before = {}, StepTimings::Traffic after = {}) {
  timings->Begun(step, At(from), [&] { return before; });
  timings->Exchanged(At(from + 6), At(from + 8));
  EXPECT_FALSE(timings->Over());
  timings->Decided(At(from + 8), At(from + 9));
  ASSERT_TRUE(timings->Over());
  timings->Ended(At(from + 9), after);
}

TEST(StepTimingsTest, PartsAddUpToTheTimeSinceTheStepBefore) {
  StepTimings timings;
  Step(7, 0, &timings, {10, 100}, {30, 150});
  // The second one ends 9 s after its begin, and 11 s after the first one's
  // end: what lies between them is computed as well.
  Step(8, 11, &timings, {40, 160}, {70, 200});
  const v1::Heartbeat beat = Beat(&timings);
  ASSERT_EQ(beat.steps_size(), 2);
  EXPECT_EQ(beat.steps(0).step(), 7);
  EXPECT_DOUBLE_EQ(beat.steps(0).compute(), 6);
  EXPECT_DOUBLE_EQ(beat.steps(0).exchange(), 2);
  EXPECT_DOUBLE_EQ(beat.steps(0).wait(), 1);
  EXPECT_EQ(beat.steps(0).payload_bytes(), 20);
  EXPECT_EQ(beat.steps(0).wire_bytes(), 50);
  EXPECT_EQ(beat.steps(1).step(), 8);
  EXPECT_DOUBLE_EQ(beat.steps(1).compute(), 8);
  EXPECT_DOUBLE_EQ(beat.steps(1).exchange(), 2);
  EXPECT_DOUBLE_EQ(beat.steps(1).wait(), 1);
  // Also what was moved between the steps.
  EXPECT_EQ(beat.steps(1).payload_bytes(), 40);
  EXPECT_EQ(beat.steps(1).wire_bytes(), 50);
}

TEST(StepTimingsTest, WhatTheBackwardPassHidesIsNoWait) {
  StepTimings timings;
  timings.Begun(0, At(0), Nothing);
  timings.Waited(At(1), At(5));  // for the grant; computed until 4
  timings.Exchanged(At(4), At(7));
  timings.Decided(At(7), At(7));
  timings.Ended(At(7), {});
  const v1::Heartbeat beat = Beat(&timings);
  ASSERT_EQ(beat.steps_size(), 1);
  EXPECT_DOUBLE_EQ(beat.steps(0).compute(), 4);
  EXPECT_DOUBLE_EQ(beat.steps(0).wait(), 1);
  EXPECT_DOUBLE_EQ(beat.steps(0).exchange(), 2);
}

TEST(StepTimingsTest, ADecisionWithinTheExchangeIsWaitedForThere) {
  StepTimings timings;
  timings.Begun(0, At(0), Nothing);
  timings.Decided(At(3), At(5));  // on the exchange thread
  EXPECT_FALSE(timings.Over());
  timings.Exchanged(At(2), At(6));
  ASSERT_TRUE(timings.Over());
  timings.Ended(At(6), {});
  const v1::Heartbeat beat = Beat(&timings);
  ASSERT_EQ(beat.steps_size(), 1);
  EXPECT_DOUBLE_EQ(beat.steps(0).compute(), 2);
  EXPECT_DOUBLE_EQ(beat.steps(0).wait(), 2);
  EXPECT_DOUBLE_EQ(beat.steps(0).exchange(), 2);
}

TEST(StepTimingsTest, ExchangesOfOneStepCountTogether) {
  StepTimings timings;
  Step(3, 0, &timings, {0, 0}, {1, 2});
  Step(3, 9, &timings, {1, 2}, {4, 6});
  const v1::Heartbeat beat = Beat(&timings);
  ASSERT_EQ(beat.steps_size(), 1);
  EXPECT_DOUBLE_EQ(beat.steps(0).compute(), 12);
  EXPECT_DOUBLE_EQ(beat.steps(0).exchange(), 4);
  EXPECT_EQ(beat.steps(0).payload_bytes(), 4);
  EXPECT_EQ(beat.steps(0).wire_bytes(), 6);
}

TEST(StepTimingsTest, AHeartbeatHasTheNewestOnce) {
  StepTimings timings;
  for (int i = 0; i < 100; ++i) Step(i, 9 * i, &timings);
  const v1::Heartbeat beat = Beat(&timings);
  ASSERT_EQ(beat.steps_size(), 64);
  EXPECT_EQ(beat.steps(0).step(), 36);
  EXPECT_EQ(beat.steps(63).step(), 99);
  EXPECT_EQ(Beat(&timings).steps_size(), 0);
}

TEST(StepTimingsTest, AnAbandonedStepIsNotCounted) {
  StepTimings timings;
  timings.Begun(0, At(0), Nothing);
  timings.Exchanged(At(1), At(2));  // no decision came
  EXPECT_FALSE(timings.Over());
  timings.Ended(At(3), {});
  Step(1, 4, &timings);
  const v1::Heartbeat beat = Beat(&timings);
  ASSERT_EQ(beat.steps_size(), 1);
  EXPECT_EQ(beat.steps(0).step(), 1);
}

}  // namespace
}  // namespace coxswain
