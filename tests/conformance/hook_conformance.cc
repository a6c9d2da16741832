#include "tests/conformance/hook_conformance.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/conformance/hook_case_steps.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HookConformance);

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Gradients of `size` ranks that differ, and have the average of `local`.
std::vector<Gradients> SameAverage(const HookCase& hook,
                                   const std::vector<Gradients>& local,
                                   int size, int64_t step) {
  std::vector<Gradients> other(static_cast<size_t>(size), MeanOver(local));
  for (int rank = 0; rank + 1 < size; ++rank) {
    const Gradients noise =
        NormalGradients(Parameters(hook), kStream + 1, rank, step);
    AddTo(other[static_cast<size_t>(rank)], noise, 0.5);
    AddTo(other.back(), noise, -0.5);
  }
  return other;
}

// Returns a model that has lost p3 and got another parameter before all others,
// and in which p4, a matrix, has its transpose's shape.
std::vector<ParameterSpec> OtherParameters(const HookCase& hook) {
  std::vector<ParameterSpec> parameters = Parameters(hook);
  std::swap(parameters[4].shape[0], parameters[4].shape[1]);
  parameters.erase(parameters.begin() + 3);
  ParameterSpec added = parameters[0];
  added.name = "added.weight";
  added.shape = {9, 20};
  parameters.insert(parameters.begin(), added);
  return parameters;
}

// Of values by OtherParameters, those of the parameters that stayed as they
// were; `before`: of values by Parameters.
Gradients Stayed(const Gradients& values, bool before) {
  Gradients stayed = values;
  if (before) {
    stayed.erase(stayed.begin() + 3, stayed.begin() + 5);
  } else {
    stayed.erase(stayed.begin() + 4);
    stayed.erase(stayed.begin());
  }
  return stayed;
}

// A step of a hook that has not started, and of one that loses nothing, is the
// average. Where ranks differ it is so in the mean over the ranks.
TEST_P(HookConformance, EveryStepIsTheAverageOnAllRanks) {
  const HookCase& hook = GetParam();
  for (int size = 1; size <= 8; ++size) {
    HookWorld world = MakeWorld(hook, size);
    for (int64_t step = 0; step < hook.start_step + 4; ++step) {
      EXPECT_EQ(world.hook(0).step(), step);
      EXPECT_EQ(world.hook(0).started(), step >= hook.start_step);
      const auto local = LocalGradients(hook, size, step);
      const auto results = Step(hook, world, local);
      EXPECT_TRUE(AllFinite(results));
      if (hook.average_tolerance < 0 && step >= hook.start_step) continue;
      EXPECT_LE(RelativeDifference(MeanOver(results), MeanOver(local)),
                std::abs(hook.average_tolerance))
          << "step " << step << " of " << size << " ranks";
    }
  }
}

TEST_P(HookConformance, RollbackLeavesNoTrace) {
  const HookCase& hook = GetParam();
  for (int size = 1; size <= 4; ++size) {
    HookWorld world = MakeWorld(hook, size);
    HookWorld untouched = MakeWorld(hook, size);
    for (int64_t step = 0; step < hook.start_step + 3; ++step) {
      Exchange(hook, world, LocalGradients(hook, size, 1000 + step));
      world.Rollback();
      EXPECT_EQ(world.hook(0).step(), step);
      const auto local = LocalGradients(hook, size, step);
      EXPECT_EQ(Step(hook, world, local), Step(hook, untouched, local))
          << "step " << step;
    }
    EXPECT_EQ(SerializeHookState(world.Save()),
              SerializeHookState(untouched.Save()));
  }
}

// A peer was lost in the middle of a step; the step is tried again.
TEST_P(HookConformance, AnAbandonedStepLeavesNoTrace) {
  const HookCase& hook = GetParam();
  for (int advances = 0; advances <= 3; ++advances) {
    HookWorld world = MakeWorld(hook, 3);
    HookWorld untouched = MakeWorld(hook, 3);
    for (int64_t step = 0; step < hook.start_step + 2; ++step) {
      world.GiveUp(LocalGradients(hook, 3, 1000 + step), advances);
      world.Rollback();
      const auto local = LocalGradients(hook, 3, step);
      EXPECT_EQ(Step(hook, world, local), Step(hook, untouched, local))
          << "step " << step << " after " << advances << " calls";
    }
    EXPECT_EQ(SerializeHookState(world.Save()),
              SerializeHookState(untouched.Save()));
  }
}

TEST_P(HookConformance, OtherBucketsChangeNothing) {
  const HookCase& hook = GetParam();
  HookWorld world = MakeWorld(hook, 3);
  HookWorld changing = MakeWorld(hook, 3);
  const int64_t half = hook.start_step + 2;
  EXPECT_EQ(RunSteps(hook, world, 0, half), RunSteps(hook, changing, 0, half));
  changing.Rebucket(OtherBuckets(hook));
  const auto results = RunSteps(hook, world, half, half + 3);
  const auto changed = RunSteps(hook, changing, half, half + 3);
  if (!hook.buckets_matter) {
    EXPECT_EQ(results, changed);
  }
  for (const auto& step : changed) EXPECT_TRUE(AllFinite(step));
}

// For callers that divide the gradients: see Hook::needs_frozen_layout.
TEST_P(HookConformance, ReportsFromWhichStepOnTheLayoutIsFrozen) {
  const HookCase& hook = GetParam();
  HookWorld world = MakeWorld(hook, 2);
  const auto frozen = [&hook](int64_t step) {
    return hook.freezes_layout && step >= hook.start_step;
  };
  for (int64_t step = 0; step < hook.start_step + 3; ++step) {
    EXPECT_EQ(world.hook(1).needs_frozen_layout(), frozen(step)) << step;
    Exchange(hook, world, LocalGradients(hook, 2, step));
    EXPECT_EQ(world.hook(1).needs_frozen_layout(), frozen(step)) << step;
    world.Rollback();
    EXPECT_EQ(world.hook(1).needs_frozen_layout(), frozen(step)) << step;
    HookWorld restarted = MakeWorld(hook, 3);
    ASSERT_OK(restarted.Load(world.Save()));
    EXPECT_EQ(restarted.hook(2).needs_frozen_layout(), frozen(step)) << step;
    Step(hook, world, LocalGradients(hook, 2, step));
  }
}

TEST_P(HookConformance, BucketsMayChangeBeforeEachStepUntilTheyAreFrozen) {
  const HookCase& hook = GetParam();
  HookWorld world = MakeWorld(hook, 3);
  HookWorld changing = MakeWorld(hook, 3);
  for (int64_t step = 0; step < hook.start_step + 4; ++step) {
    const bool frozen = changing.hook(0).needs_frozen_layout();
    if (frozen && hook.buckets_matter) break;
    if (!frozen) {
      changing.Rebucket(OtherBuckets(hook, static_cast<size_t>(step % 4 + 2)));
    }
    const auto local = LocalGradients(hook, 3, step);
    EXPECT_EQ(Step(hook, changing, local), Step(hook, world, local))
        << "step " << step;
  }
}

TEST_P(HookConformance, StateOutlivesItsBuckets) {
  const HookCase& hook = GetParam();
  const auto parameters = Parameters(hook);
  HookWorld world = MakeWorld(hook, 3);
  RunSteps(hook, world, 0, hook.start_step + 3);
  const HookState before = world.Save();
  const Gradients error = MeanError(before, parameters, 3);
  for (const size_t number : {3, 1, 5}) {
    world.Rebucket(OtherBuckets(hook, number));
    Exchange(hook, world, LocalGradients(hook, 3, 1000));
    world.Rollback();
    const HookState after = world.Save();
    EXPECT_EQ(after.step, before.step);
    EXPECT_LE(RelativeDifference(MeanError(after, parameters, 3), error),
              std::abs(hook.average_tolerance))
        << number << " buckets";
    if (!hook.buckets_matter) {
      EXPECT_EQ(SerializeHookState(after), SerializeHookState(before));
    }
  }
}

TEST_P(HookConformance, StateOutlivesOtherParametersThatComeAndGo) {
  const HookCase& hook = GetParam();
  const auto others = OtherParameters(hook);
  HookWorld world = MakeWorld(hook, 2);
  HookWorld untouched = MakeWorld(hook, 2);
  const int64_t half = hook.start_step + 3;
  RunSteps(hook, world, 0, half);
  RunSteps(hook, untouched, 0, half);
  world.Reconfigure(others);
  const HookState state = world.Save();
  EXPECT_EQ(state.step, half);
  const Gradients error = MeanError(state, others, 2);
  const Gradients old = MeanError(untouched.Save(), Parameters(hook), 2);
  EXPECT_LE(RelativeDifference(Stayed(error, false), Stayed(old, true)),
            std::abs(hook.average_tolerance));
  // Another shape, and a new parameter.
  for (const size_t fresh : {0, 4}) {
    EXPECT_EQ(RelativeDifference({error[fresh]},
                                 {std::vector<double>(error[fresh].size())}),
              0);
  }
  for (int64_t step = half; step < half + 3; ++step) {
    const std::vector<Gradients> local = {
        NormalGradients(others, kStream, 0, step),
        NormalGradients(others, kStream, 1, step)};
    const auto results = Step(hook, world, local);
    EXPECT_TRUE(AllFinite(results));
    const auto expected = Step(hook, untouched, LocalGradients(hook, 2, step));
    if (hook.buckets_matter) continue;
    for (size_t rank = 0; rank < results.size(); ++rank) {
      EXPECT_EQ(Stayed(results[rank], false), Stayed(expected[rank], true));
    }
  }
}

// The sum of results and mean error is that of the averages, over steps with
// changing buckets and a rollback among them.
TEST_P(HookConformance, ErrorFeedbackLosesNothing) {
  const HookCase& hook = GetParam();
  if (!hook.error_feedback) return;
  for (const int size : {1, 2, 5, 8}) {
    HookWorld world = MakeWorld(hook, size);
    RunSteps(hook, world, 0, hook.start_step);
    Gradients sent, averages;
    for (int64_t step = hook.start_step; step < hook.start_step + 8; ++step) {
      if (step == hook.start_step + 3) world.Rebucket(OtherBuckets(hook));
      if (step == hook.start_step + 5) {
        Exchange(hook, world, LocalGradients(hook, size, 1000));
        world.Rollback();
      }
      const auto local = LocalGradients(hook, size, step);
      AddTo(sent, Step(hook, world, local)[0]);
      AddTo(averages, MeanOver(local));
      Gradients whole = MeanError(world.Save(), Parameters(hook), size);
      AddTo(whole, sent);
      EXPECT_LE(RelativeDifference(whole, averages),
                std::abs(hook.average_tolerance))
          << "step " << step << " of " << size << " ranks";
    }
  }
}

TEST_P(HookConformance, StateSurvivesARestartOnAnyNumberOfRanks) {
  const HookCase& hook = GetParam();
  for (const auto& [before, after] :
       {std::pair{4, 2}, {2, 3}, {2, 1}, {1, 4}, {3, 3}}) {
    const int64_t saved_at = hook.start_step + 5;
    HookWorld world = MakeWorld(hook, before);
    RunSteps(hook, world, 0, saved_at);
    HookWorld restarted = MakeWorld(
        hook, after,
        hook.buckets_matter ? HookWorld::Buckets() : OtherBuckets(hook));
    const HookState saved = world.Save();
    ASSERT_OK(restarted.Load(saved));
    EXPECT_EQ(restarted.hook(0).step(), saved_at);
    // By the restarted run: what it is to send, and what it has sent.
    Gradients given = MeanError(saved, Parameters(hook), before);
    Gradients sent;
    for (int64_t step = saved_at; step < saved_at + 11; ++step) {
      const auto local = LocalGradients(hook, before, step);
      const auto expected = Step(hook, world, local);
      const bool same_ranks = hook.state_per_rank && before == after;
      const auto gradients =
          same_ranks ? local : SameAverage(hook, local, after, step);
      const auto got = Step(hook, restarted, gradients);
      EXPECT_TRUE(AllFinite(got));
      AddTo(given, MeanOver(gradients));
      AddTo(sent, MeanOver(got));
      if (hook.state_per_rank && before != after) {
        EXPECT_LE(RelativeDifference(MeanOver(got), MeanOver(local)),
                  2 * std::abs(hook.average_tolerance));
        continue;
      }
      EXPECT_LE(
          RelativeDifference(MeanOver(got), MeanOver(expected)),
          step == saved_at ? hook.first_step_tolerance : hook.later_tolerance)
          << before << " to " << after << " ranks, step " << step - saved_at;
    }
    if (!hook.error_feedback || hook.state_per_rank) continue;
    // Nothing is lost, however far the two runs are apart by now.
    AddTo(sent, MeanError(restarted.Save(), Parameters(hook), after));
    EXPECT_LE(RelativeDifference(sent, given),
              std::abs(hook.average_tolerance) + hook.first_step_tolerance)
        << before << " to " << after << " ranks";
  }
}

TEST_P(HookConformance, AStateThatDoesNotFitChangesNothing) {
  const HookCase& hook = GetParam();
  HookWorld world = MakeWorld(hook, 2);
  HookWorld untouched = MakeWorld(hook, 2);
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
  HookWorld world = MakeWorld(hook, 2);
  Gradients zero;
  AddTo(zero, NormalGradients(Parameters(hook), kStream, 0, 0), 0);
  for (int64_t step = 0; step < hook.start_step + 3; ++step) {
    for (const Gradients& result : Step(hook, world, {zero, zero})) {
      EXPECT_EQ(RelativeDifference(result, zero), 0);
    }
  }
  const auto results = Step(hook, world, LocalGradients(hook, 2, 50));
  EXPECT_TRUE(AllFinite(results));
  EXPECT_GT(RelativeDifference(results[0], zero), 0.1);
}

// In a matrix, in a vector that shares its bucket, in a scalar, and in what
// has one column.
TEST_P(HookConformance, OneInfinityIsSeenByAllAndEntersNoState) {
  const HookCase& hook = GetParam();
  for (const auto& [parameter, element] :
       {std::pair<size_t, size_t>{0, 2}, {1, 2}, {2, 0}, {6, 5}}) {
    HookWorld world = MakeWorld(hook, 3);
    HookWorld untouched = MakeWorld(hook, 3);
    const int64_t half = hook.start_step + 2;
    RunSteps(hook, world, 0, half);
    RunSteps(hook, untouched, 0, half);
    EXPECT_TRUE(world.NonFinite().empty());
    auto local = LocalGradients(hook, 3, half);
    local[1][parameter][element] = parameter == 1 ? std::nan("") : kInfinity;
    // Equal on all ranks, if the step makes them so.
    EXPECT_FALSE(AllFinite(Exchange(hook, world, local)));
    const auto found = world.NonFinite();
    ASSERT_EQ(found.size(), hook.reports_non_finite ? 1u : 0u);
    if (hook.reports_non_finite) {
      EXPECT_EQ(found[0].rank, 1);
      EXPECT_EQ(found[0].parameter, Parameters(hook)[parameter].name);
    }
    world.Rollback();
    EXPECT_EQ(RunSteps(hook, world, half, half + 2),
              RunSteps(hook, untouched, half, half + 2));
    EXPECT_TRUE(world.NonFinite().empty());
    Step(hook, world, local);  // committed all the same
    for (const auto& results : RunSteps(hook, world, half + 3, half + 6)) {
      EXPECT_TRUE(AllFinite(results));
    }
    EXPECT_TRUE(world.NonFinite().empty());
    // Loading refuses what is not finite.
    EXPECT_OK(untouched.Load(world.Save()));
  }
}

// Two ranks and two buckets: each has its report.
TEST_P(HookConformance, EveryRanksFirstNonFiniteGradientIsReported) {
  const HookCase& hook = GetParam();
  if (!hook.reports_non_finite) return;
  HookWorld world = MakeWorld(hook, 4);
  const int64_t half = hook.start_step + 2;
  RunSteps(hook, world, 0, half);
  auto local = LocalGradients(hook, 4, half);
  local[3][3][7] = -kInfinity;
  local[0][3][1] = std::nan("");
  local[2][8][95] = kInfinity;
  Exchange(hook, world, local);
  std::vector<std::pair<int, std::string>> found;
  for (const NonFiniteGradient& one : world.NonFinite()) {
    found.emplace_back(one.rank, one.parameter);
  }
  const auto parameters = Parameters(hook);
  EXPECT_THAT(found,
              testing::UnorderedElementsAre(std::pair{0, parameters[3].name},
                                            std::pair{3, parameters[3].name},
                                            std::pair{2, parameters[8].name}));
  world.Rollback();
  Exchange(hook, world, LocalGradients(hook, 4, half));
  EXPECT_TRUE(world.NonFinite().empty());
}

TEST_P(HookConformance, PayloadIsTheFormulaToTheByte) {
  const HookCase& hook = GetParam();
  const auto parameters = Parameters(hook);
  for (const int size : {1, 2, 3, 4, 7}) {
    HookWorld world = MakeWorld(hook, size);
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
      Step(hook, world, LocalGradients(hook, size, step));
      EXPECT_EQ(world.payload_bytes() - before, expected) << "step " << step;
    }
  }
}

}  // namespace

HookCase PlainHookCase(std::string name, std::string spec, DType dtype,
                       int64_t width, double tolerance) {
  HookCase hook;
  hook.name = std::move(name);
  hook.spec = std::move(spec);
  hook.dtype = dtype;
  hook.average_tolerance = tolerance;
  hook.first_step_tolerance = 2 * tolerance;
  hook.later_tolerance = 2 * tolerance;
  hook.bucket_bytes = [width](const std::vector<ParameterSpec>& parameters,
                              const HookStep&) {
    int64_t count = 0;
    for (const ParameterSpec& parameter : parameters) {
      count += parameter.count();
    }
    return count * width;
  };
  return hook;
}

}  // namespace coxswain
