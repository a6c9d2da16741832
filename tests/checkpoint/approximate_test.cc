#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/replay.h"
#include "tests/conformance/hook_world.h"

// The log reports a restart that is only approximate, and none that is exact.

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSmall = 900;  // bytes of a bucket
constexpr int64_t kLarge = 5000;

HookWorld MakeWorld(const std::string& spec, int size, int64_t bucket_bytes) {
  const auto parameters = ResumeModel(DType::kFloat32);
  return HookWorld(spec, parameters, size, BucketsOf(parameters, bucket_bytes));
}

std::vector<Gradients> Train(HookWorld& world, int64_t from, int64_t to) {
  std::vector<Gradients> results;
  for (int64_t step = from; step < to; ++step) {
    results.push_back(world.Step(Replayed(
        ResumeModel(DType::kFloat32), Signal::kShared, world.size(), step)));
  }
  return results;
}

// Returns the log of a world that goes on for two steps from this state.
std::string LogOf(const HookState& state, HookWorld& world) {
  testing::internal::CaptureStderr();
  EXPECT_OK(world.Load(state));
  Train(world, state.step, state.step + 2);
  return testing::internal::GetCapturedStderr();
}

TEST(ApproximateTest, Int8ReportsAnotherNumberOfRanks) {
  for (const char* spec : {"int8", "stats(int8)"}) {
    HookWorld world = MakeWorld(spec, 4, kSmall);
    Train(world, 0, 5);
    const HookState state = world.Save();
    HookWorld fewer = MakeWorld(spec, 2, kSmall);
    EXPECT_THAT(
        LogOf(state, fewer),
        AllOf(HasSubstr("int8_errors_averaged"), HasSubstr("saved_by_ranks=4"),
              HasSubstr("ranks=2"), HasSubstr("approximate")));
  }
}

TEST(ApproximateTest, Int8GoesOnBitByBitOnAsManyRanksAndIsSilent) {
  HookWorld world = MakeWorld("int8", 4, kSmall);
  Train(world, 0, 5);
  const HookState state = world.Save();
  HookWorld as_many = MakeWorld("int8", 4, kSmall);
  EXPECT_THAT(LogOf(state, as_many), Not(HasSubstr("approximate")));
  Train(world, 5, 7);
  EXPECT_EQ(Train(as_many, 7, 15), Train(world, 7, 15));
}

TEST(ApproximateTest, BatchedPowerSgdReportsOtherBuckets) {
  HookWorld world = MakeWorld("batched_powersgd(start_step=2)", 4, kSmall);
  Train(world, 0, 5);
  const HookState state = world.Save();
  for (const int size : {4, 2}) {
    HookWorld other = MakeWorld("batched_powersgd(start_step=2)", size, kLarge);
    EXPECT_THAT(
        LogOf(state, other),
        AllOf(HasSubstr("factors_of_other_buckets"), HasSubstr("approximate")));
    HookWorld same = MakeWorld("batched_powersgd(start_step=2)", size, kSmall);
    EXPECT_THAT(LogOf(state, same), Not(HasSubstr("approximate")));
  }
}

TEST(ApproximateTest, WhatIsExactIsSilent) {
  for (const char* spec :
       {"powersgd(rank=2,start_step=2)", "acp_sgd(rank=2,start_step=2)"}) {
    HookWorld world = MakeWorld(spec, 4, kSmall);
    Train(world, 0, 5);
    HookWorld other = MakeWorld(spec, 2, kLarge);
    EXPECT_THAT(LogOf(world.Save(), other), Not(HasSubstr("approximate")));
  }
}

}  // namespace
}  // namespace coxswain
