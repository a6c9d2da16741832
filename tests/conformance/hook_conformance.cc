#include "tests/conformance/hook_conformance.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HookConformance);

constexpr uint64_t kStream = 11;

std::vector<ParameterSpec> Parameters(const HookCase& hook) {
  return OddParameters(hook.dtype);
}

std::vector<Gradients> LocalGradients(const HookCase& hook, int size,
                                      int64_t step) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(Parameters(hook), kStream, rank, step));
  }
  return local;
}

Gradients Average(const std::vector<Gradients>& local) {
  Gradients average;
  for (const Gradients& gradients : local) {
    AddTo(average, gradients, 1.0 / static_cast<double>(local.size()));
  }
  return average;
}

// Gradients of `size` ranks that differ, and have the average of `local`.
std::vector<Gradients> SameAverage(const HookCase& hook,
                                   const std::vector<Gradients>& local,
                                   int size, int64_t step) {
  std::vector<Gradients> other(static_cast<size_t>(size), Average(local));
  for (int rank = 0; rank + 1 < size; ++rank) {
    const Gradients noise =
        NormalGradients(Parameters(hook), kStream + 1, rank, step);
    AddTo(other[static_cast<size_t>(rank)], noise, 0.5);
    AddTo(other.back(), noise, -0.5);
  }
  return other;
}

// Three buckets in registration order.
HookWorld::Buckets OtherBuckets(const HookCase& hook) {
  HookWorld::Buckets buckets(3);
  const size_t count = Parameters(hook).size();
  for (size_t i = 0; i < count; ++i) {
    buckets[i * 3 / count].push_back(static_cast<int>(i));
  }
  return buckets;
}

// Steps [from, to) with each step's own gradients.
std::vector<Gradients> RunSteps(const HookCase& hook, HookWorld& world,
                                int64_t from, int64_t to) {
  std::vector<Gradients> results;
  for (int64_t step = from; step < to; ++step) {
    results.push_back(world.Step(LocalGradients(hook, world.size(), step)));
  }
  return results;
}

bool AllFinite(const Gradients& gradients) {
  for (const auto& values : gradients) {
    for (const double value : values) {
      if (!std::isfinite(value)) return false;
    }
  }
  return true;
}

TEST_P(HookConformance, EveryStepIsTheAverageOnAllRanks) {
  const HookCase& hook = GetParam();
  for (int size = 1; size <= 4; ++size) {
    HookWorld world(hook.spec, Parameters(hook), size);
    for (int64_t step = 0; step < hook.start_step + 4; ++step) {
      EXPECT_EQ(world.hook(0).step(), step);
      EXPECT_EQ(world.hook(0).started(), step >= hook.start_step);
      const auto local = LocalGradients(hook, size, step);
      const Gradients result = world.Step(local);
      EXPECT_TRUE(AllFinite(result));
      if (hook.average_tolerance < 0 && step >= hook.start_step) continue;
      EXPECT_LE(RelativeDifference(result, Average(local)),
                std::abs(hook.average_tolerance))
          << "step " << step << " of " << size << " ranks";
    }
  }
}

TEST_P(HookConformance, RollbackLeavesNoTrace) {
  const HookCase& hook = GetParam();
  for (int size = 1; size <= 4; ++size) {
    HookWorld world(hook.spec, Parameters(hook), size);
    HookWorld untouched(hook.spec, Parameters(hook), size);
    for (int64_t step = 0; step < hook.start_step + 3; ++step) {
      world.Exchange(LocalGradients(hook, size, 1000 + step));
      world.Rollback();
      EXPECT_EQ(world.hook(0).step(), step);
      const auto local = LocalGradients(hook, size, step);
      EXPECT_EQ(world.Step(local), untouched.Step(local)) << "step " << step;
    }
    EXPECT_EQ(SerializeHookState(world.Save()),
              SerializeHookState(untouched.Save()));
  }
}

TEST_P(HookConformance, OtherBucketsChangeNothing) {
  const HookCase& hook = GetParam();
  HookWorld world(hook.spec, Parameters(hook), 3);
  HookWorld changing(hook.spec, Parameters(hook), 3);
  const int64_t half = hook.start_step + 2;
  EXPECT_EQ(RunSteps(hook, world, 0, half), RunSteps(hook, changing, 0, half));
  changing.Rebucket(OtherBuckets(hook));
  EXPECT_EQ(RunSteps(hook, world, half, half + 3),
            RunSteps(hook, changing, half, half + 3));
}

TEST_P(HookConformance, StateSurvivesARestartOnAnyNumberOfRanks) {
  const HookCase& hook = GetParam();
  for (const auto& [before, after] :
       {std::pair{4, 2}, {2, 3}, {2, 1}, {1, 4}, {3, 3}}) {
    const int64_t saved_at = hook.start_step + 5;
    HookWorld world(hook.spec, Parameters(hook), before);
    RunSteps(hook, world, 0, saved_at);
    HookWorld restarted(hook.spec, Parameters(hook), after, OtherBuckets(hook));
    ASSERT_OK(restarted.Load(world.Save()));
    EXPECT_EQ(restarted.hook(0).step(), saved_at);
    for (int64_t step = saved_at; step < saved_at + 11; ++step) {
      const auto local = LocalGradients(hook, before, step);
      const Gradients expected = world.Step(local);
      const Gradients got =
          restarted.Step(SameAverage(hook, local, after, step));
      EXPECT_LE(
          RelativeDifference(got, expected),
          step == saved_at ? hook.first_step_tolerance : hook.later_tolerance)
          << before << " to " << after << " ranks, step " << step - saved_at;
    }
  }
}

TEST_P(HookConformance, AStateThatDoesNotFitChangesNothing) {
  const HookCase& hook = GetParam();
  HookWorld world(hook.spec, Parameters(hook), 2);
  HookWorld untouched(hook.spec, Parameters(hook), 2);
  const int64_t half = hook.start_step + 2;
  EXPECT_EQ(RunSteps(hook, world, 0, half), RunSteps(hook, untouched, 0, half));
  HookState other = world.Save();
  other.spec = "somebody_elses";
  EXPECT_THAT(world.Load(other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("somebody_elses")));
  EXPECT_EQ(RunSteps(hook, world, half, half + 2),
            RunSteps(hook, untouched, half, half + 2));
}

TEST_P(HookConformance, ZeroGradientsGiveZeroAndTheHookGoesOn) {
  const HookCase& hook = GetParam();
  HookWorld world(hook.spec, Parameters(hook), 2);
  Gradients zero;
  AddTo(zero, NormalGradients(Parameters(hook), kStream, 0, 0), 0);
  for (int64_t step = 0; step < hook.start_step + 3; ++step) {
    EXPECT_EQ(RelativeDifference(world.Step({zero, zero}), zero), 0);
  }
  const auto local = LocalGradients(hook, 2, 50);
  const Gradients result = world.Step(local);
  EXPECT_TRUE(AllFinite(result));
  EXPECT_GT(RelativeDifference(result, zero), 0.1);
}

TEST_P(HookConformance, OneInfinityIsSeenByAllAndEntersNoState) {
  const HookCase& hook = GetParam();
  // In a matrix, and in a vector that shares its bucket.
  for (const size_t where : {0u, 1u}) {
    HookWorld world(hook.spec, Parameters(hook), 3);
    HookWorld untouched(hook.spec, Parameters(hook), 3);
    const int64_t half = hook.start_step + 2;
    RunSteps(hook, world, 0, half);
    RunSteps(hook, untouched, 0, half);
    auto local = LocalGradients(hook, 3, half);
    local[1][where][2] = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(AllFinite(world.Exchange(local)));  // and equal on all ranks
    world.Rollback();
    EXPECT_EQ(RunSteps(hook, world, half, half + 2),
              RunSteps(hook, untouched, half, half + 2));
    world.Step(local);  // committed all the same
    for (const Gradients& result : RunSteps(hook, world, half + 3, half + 6)) {
      EXPECT_TRUE(AllFinite(result));
    }
    // Loading refuses what is not finite.
    EXPECT_OK(untouched.Load(world.Save()));
  }
}

TEST_P(HookConformance, PayloadIsTheFormulaToTheByte) {
  const HookCase& hook = GetParam();
  const auto parameters = Parameters(hook);
  for (int size = 1; size <= 4; ++size) {
    HookWorld world(hook.spec, parameters, size);
    for (int64_t step = 0; step < hook.start_step + 3; ++step) {
      int64_t expected = 0;
      for (const auto& bucket : HookWorld::DefaultBuckets(parameters)) {
        std::vector<ParameterSpec> members;
        for (const int number : bucket) {
          members.push_back(parameters[static_cast<size_t>(number)]);
        }
        expected += hook.bucket_bytes(
            members, HookStep{step, step >= hook.start_step, size});
      }
      const int64_t before = world.payload_bytes();
      world.Step(LocalGradients(hook, size, step));
      EXPECT_EQ(world.payload_bytes() - before, expected) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace coxswain
