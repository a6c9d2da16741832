// What every hook must do where each rank keeps the averages of its own slices
// only (Hook::PrepareSlice).

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/conformance/hook_case_steps.h"
#include "tests/conformance/hook_conformance.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

HookWorld SlicedWorld(const HookCase& hook, int size) {
  HookWorld world = MakeWorld(hook, size);
  world.KeepSlices(true);
  return world;
}

TEST_P(HookConformance, SlicesAreThoseOfTheWholeAverages) {
  const HookCase& hook = GetParam();
  for (const int size : {1, 2, 3, 5, 8}) {
    HookWorld whole = MakeWorld(hook, size);
    HookWorld sliced = SlicedWorld(hook, size);
    for (int64_t step = 0; step < hook.start_step + 3; ++step) {
      const bool exact = hook.slices_are_exact || step < hook.start_step;
      const auto local = LocalGradients(hook, size, step);
      const Gradients slices = sliced.Exchange(local);
      const Gradients expected = whole.OwnSlices(whole.ExchangeApart(local));
      sliced.Commit();
      whole.Commit();
      if (exact) {
        EXPECT_EQ(slices, expected) << "step " << step << " of " << size;
      } else {
        EXPECT_LE(RelativeDifference(slices, MeanOver(local)),
                  hook.average_tolerance)
            << "step " << step << " of " << size;
      }
    }
    EXPECT_EQ(sliced.hook(0).step(), hook.start_step + 3);
    if (hook.slices_are_exact) {
      EXPECT_EQ(SerializeHookState(sliced.Save()),
                SerializeHookState(whole.Save()));
    }
  }
}

// With all buckets in flight at a time, as under a reducer.
TEST_P(HookConformance, SlicesInFlightHaveTheSameBits) {
  const HookCase& hook = GetParam();
  HookWorld apart = SlicedWorld(hook, 3);
  HookWorld in_flight = SlicedWorld(hook, 3);
  for (int64_t step = 0; step < hook.start_step + 2; ++step) {
    const auto local = LocalGradients(hook, 3, step);
    EXPECT_EQ(in_flight.ExchangeInFlight(local), apart.ExchangeApart(local));
    in_flight.Commit();
    apart.Commit();
  }
}

// The sum of slices and mean error is that of the averages, over steps on
// slices and on whole buckets in turns, with other buckets, a rollback and a
// restart among them.
TEST_P(HookConformance, ErrorFeedbackLosesNothingOnSlices) {
  const HookCase& hook = GetParam();
  if (!hook.error_feedback) return;
  for (const int size : {1, 2, 5}) {
    HookWorld world = SlicedWorld(hook, size);
    RunSteps(hook, world, 0, hook.start_step);
    Gradients sent, averages;
    for (int64_t step = hook.start_step; step < hook.start_step + 9; ++step) {
      const int64_t turn = step - hook.start_step;
      world.KeepSlices(turn % 3 != 2);
      if (turn == 4) world.Rebucket(OtherBuckets(hook));
      if (turn == 6) {
        Exchange(hook, world, LocalGradients(hook, size, 1000));
        world.Rollback();
      }
      if (turn == 7) {
        ASSERT_OK(world.Load(world.Save()));
      }
      const auto local = LocalGradients(hook, size, step);
      AddTo(sent, Step(hook, world, local)[0]);
      AddTo(averages, MeanOver(local));
      Gradients all = MeanError(world.Save(), Parameters(hook), size);
      AddTo(all, sent);
      EXPECT_LE(RelativeDifference(all, averages),
                std::abs(hook.average_tolerance))
          << "turn " << turn << " of " << size << " ranks";
    }
  }
}

TEST_P(HookConformance, AStepOnSlicesThatIsGivenUpLeavesNoTrace) {
  const HookCase& hook = GetParam();
  for (int advances = 0; advances <= 3; ++advances) {
    HookWorld world = SlicedWorld(hook, 3);
    HookWorld untouched = SlicedWorld(hook, 3);
    for (int64_t step = 0; step < hook.start_step + 2; ++step) {
      world.GiveUp(LocalGradients(hook, 3, 1000 + step), advances);
      world.Rollback();
      Exchange(hook, world, LocalGradients(hook, 3, 2000 + step));
      world.Rollback();
      const auto local = LocalGradients(hook, 3, step);
      EXPECT_EQ(Step(hook, world, local), Step(hook, untouched, local))
          << "step " << step << " after " << advances << " calls";
    }
    EXPECT_EQ(SerializeHookState(world.Save()),
              SerializeHookState(untouched.Save()));
  }
}

// By the owner of the element, at least.
TEST_P(HookConformance, OneInfinityIsInTheSlicesAndEntersNoState) {
  const HookCase& hook = GetParam();
  if (hook.ranks_differ) return;
  for (const auto& [parameter, element] :
       {std::pair<size_t, size_t>{0, 2}, {1, 2}, {3, 239}}) {
    HookWorld world = SlicedWorld(hook, 3);
    HookWorld untouched = SlicedWorld(hook, 3);
    const int64_t half = hook.start_step + 2;
    RunSteps(hook, world, 0, half);
    RunSteps(hook, untouched, 0, half);
    auto local = LocalGradients(hook, 3, half);
    local[1][parameter][element] = std::numeric_limits<double>::infinity();
    const Gradients slices = world.Exchange(local);
    EXPECT_FALSE(std::isfinite(slices[parameter][element]));
    const auto found = world.NonFinite();
    ASSERT_EQ(found.size(), hook.reports_non_finite ? 1u : 0u);
    if (hook.reports_non_finite) {
      EXPECT_EQ(found[0].rank, 1);
      EXPECT_EQ(found[0].parameter, Parameters(hook)[parameter].name);
    }
    world.Rollback();
    EXPECT_EQ(RunSteps(hook, world, half, half + 2),
              RunSteps(hook, untouched, half, half + 2));
    Step(hook, world, local);  // committed all the same
    for (const auto& results : RunSteps(hook, world, half + 3, half + 6)) {
      EXPECT_TRUE(AllFinite(results));
    }
    EXPECT_OK(untouched.Load(world.Save()));
  }
}

TEST_P(HookConformance, PayloadOfSlicesIsTheFormulaToTheByte) {
  const HookCase& hook = GetParam();
  const auto parameters = Parameters(hook);
  const auto& formula =
      hook.slice_bytes != nullptr ? hook.slice_bytes : hook.bucket_bytes;
  for (const int size : {1, 2, 3, 7}) {
    HookWorld world = SlicedWorld(hook, size);
    for (int64_t step = 0; step < hook.start_step + 2; ++step) {
      int64_t expected = 0;
      for (const auto& bucket : HookWorld::DefaultBuckets(parameters)) {
        std::vector<ParameterSpec> members;
        for (const int number : bucket) {
          members.push_back(parameters[static_cast<size_t>(number)]);
        }
        expected +=
            formula(members, HookStep{step, step >= hook.start_step, size});
      }
      const int64_t before = world.payload_bytes();
      Step(hook, world, LocalGradients(hook, size, step));
      EXPECT_EQ(world.payload_bytes() - before, expected) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace coxswain
