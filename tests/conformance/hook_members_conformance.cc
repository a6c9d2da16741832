// What every hook does when the members of a running job change: SaveOwn,
// LoadOwn and ErrorNorm.

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/conformance/hook_case_steps.h"
#include "tests/conformance/hook_conformance.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

using testing::AnyOf;

// `before` ranks go on as `after`: rank i was rank from[i], or is new.
struct Change {
  int before;
  std::vector<int> from;
  bool other_buckets = false;

  int after() const { return static_cast<int>(from.size()); }
  double scale() const { return static_cast<double>(from.size()) / before; }
};

constexpr int kNew = -1;

// Returns changes of members: one of four lost; the first of two; a spare in
// place of a lost one; one more; fewer and other ranks in another order; one in
// three buckets.
const std::vector<Change>& Changes() {
  static const auto* changes = new std::vector<Change>{
      {4, {0, 2, 3}},    {2, {1}},          {3, {0, 2, kNew}},
      {2, {0, 1, kNew}}, {5, {kNew, 4, 1}}, {3, {0, 1}, true},
  };
  return *changes;
}

double Norm(const Gradients& values) {
  Gradients zero;
  AddTo(zero, values, 0);
  return RelativeDifference(values, zero);
}

// Of errors, in units of the gradients.
double Tolerance(const HookCase& hook) {
  return hook.dtype == DType::kFloat64 ? 1e-13 : 1e-6;
}

Gradients OwnError(const HookCase& hook, HookWorld& world, int rank) {
  return MeanError(world.SaveAlone(rank), Parameters(hook), 1);
}

// Returns the errors of the ranks that go on, as their share of the mean.
Gradients ErrorThatStays(const HookCase& hook, const Change& change,
                         HookWorld& world) {
  Gradients stays;
  AddTo(stays, OwnError(hook, world, 0), 0);
  if (hook.drops_errors && change.scale() != 1) return stays;
  for (const int rank : change.from) {
    if (rank == kNew) continue;
    AddTo(stays, OwnError(hook, world, rank), 1.0 / change.before);
  }
  return stays;
}

// Returns the world after the change, in which a new rank takes over from a
// former one what all have alike.
HookWorld GoOn(const HookCase& hook, const Change& change, HookWorld& before) {
  int peer = 0;
  for (const int rank : change.from) peer = rank == kNew ? peer : rank;
  HookWorld after = MakeWorld(hook, change.after());
  if (change.other_buckets) after.Rebucket(OtherBuckets(hook));
  for (int rank = 0; rank < change.after(); ++rank) {
    const int from = change.from[static_cast<size_t>(rank)];
    const bool is_new = from == kNew;
    EXPECT_OK(after.hook(rank).LoadOwn(before.SaveOwn(is_new ? peer : from),
                                       is_new ? 0 : change.scale()));
  }
  return after;
}

TEST_P(HookConformance, WhatSurvivorsLeftOutKeepsItsWeight) {
  const HookCase& hook = GetParam();
  const auto parameters = Parameters(hook);
  for (const Change& change : Changes()) {
    const int64_t at = hook.start_step + 5;
    HookWorld before = MakeWorld(hook, change.before);
    RunSteps(hook, before, 0, at);
    HookWorld after = GoOn(hook, change, before);
    EXPECT_EQ(after.hook(0).step(), at);
    const Gradients stays = ErrorThatStays(hook, change, before);
    Gradients difference = MeanError(after.Save(), parameters, change.after());
    AddTo(difference, stays, -1);
    const double unit = Norm(NormalGradients(parameters, kStream, 0, 0));
    EXPECT_LE(Norm(difference), Tolerance(hook) * unit)
        << change.before << " to " << change.after();
    if (hook.error_feedback && hook.average_tolerance < 0) {
      const bool dropped = hook.drops_errors && change.scale() != 1;
      EXPECT_EQ(Norm(stays) > 0.01 * unit, !dropped);
    }
  }
}

// The errors are not only there: the next steps send them.
TEST_P(HookConformance, AfterAChangeOfMembersNothingMoreIsLost) {
  const HookCase& hook = GetParam();
  if (!hook.error_feedback) return;
  const auto parameters = Parameters(hook);
  for (const Change& change : Changes()) {
    const int64_t at = hook.start_step + 5;
    HookWorld before = MakeWorld(hook, change.before);
    RunSteps(hook, before, 0, at);
    HookWorld after = GoOn(hook, change, before);
    Gradients owed = ErrorThatStays(hook, change, before);
    Gradients sent;
    for (int64_t step = at; step < at + 4; ++step) {
      const auto local = LocalGradients(hook, change.after(), step);
      AddTo(owed, MeanOver(local));
      AddTo(sent, Step(hook, after, local)[0]);
      Gradients whole = MeanError(after.Save(), parameters, change.after());
      AddTo(whole, sent);
      EXPECT_LE(RelativeDifference(whole, owed),
                2 * std::abs(hook.average_tolerance))
          << change.before << " to " << change.after() << ", step " << step;
    }
  }
}

// Step and Exchange check that results are the same; here the factors too.
TEST_P(HookConformance, AfterAChangeOfMembersAllRanksAgree) {
  const HookCase& hook = GetParam();
  for (const Change& change : Changes()) {
    const int64_t at = hook.start_step + 3;
    HookWorld before = MakeWorld(hook, change.before);
    RunSteps(hook, before, 0, at);
    HookWorld after = GoOn(hook, change, before);
    // All ranks have their part of a checkpoint, which can be loaded.
    EXPECT_OK(MakeWorld(hook, 2).Load(after.Save()));
    for (int64_t step = at; step < at + 3; ++step) {
      for (int rank = 1; rank < change.after(); ++rank) {
        EXPECT_EQ(SerializeHookState(after.SaveOwn(rank, /*errors=*/false)),
                  SerializeHookState(after.SaveOwn(0, /*errors=*/false)))
            << "rank " << rank << ", step " << step;
        EXPECT_EQ(after.hook(rank).started(), after.hook(0).started());
      }
      Step(hook, after, LocalGradients(hook, change.after(), step));
    }
    EXPECT_OK(MakeWorld(hook, 2).Load(after.Save()));
  }
}

TEST_P(HookConformance, AmongTheSameRanksItGoesOnBitByBit) {
  const HookCase& hook = GetParam();
  for (const int size : {1, 3}) {
    for (const int64_t steps : {int64_t{0}, hook.start_step + 5}) {
      HookWorld stayed = MakeWorld(hook, size);
      RunSteps(hook, stayed, 0, steps);
      HookWorld moved = MakeWorld(hook, size);
      RunSteps(hook, moved, 100, 103);  // forgotten
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_OK(moved.hook(rank).LoadOwn(stayed.SaveOwn(rank), 1));
        EXPECT_EQ(SerializeHookState(moved.SaveOwn(rank)),
                  SerializeHookState(stayed.SaveOwn(rank)));
      }
      EXPECT_EQ(SerializeHookState(moved.Save()),
                SerializeHookState(stayed.Save()));
      EXPECT_EQ(RunSteps(hook, moved, steps, steps + 5),
                RunSteps(hook, stayed, steps, steps + 5));
      EXPECT_EQ(SerializeHookState(moved.SaveOwn(0)),
                SerializeHookState(stayed.SaveOwn(0)));
    }
  }
}

TEST_P(HookConformance, TheNormIsThatOfTheRanksOwnError) {
  const HookCase& hook = GetParam();
  HookWorld world = MakeWorld(hook, 3);
  EXPECT_EQ(world.hook(0).ErrorNorm(), 0);
  RunSteps(hook, world, 0, hook.start_step + 4);
  for (int rank = 0; rank < 3; ++rank) {
    const Hook& own = world.hook(rank);
    const double norm = Norm(OwnError(hook, world, rank));
    EXPECT_NEAR(own.ErrorNorm(), norm, 1e-6 * norm);
    EXPECT_EQ(own.ErrorNorm(), own.ErrorNorm());
    if (hook.error_feedback && hook.average_tolerance < 0) {
      EXPECT_GT(norm, 1);
    }
  }
  const HookState state = world.SaveOwn(1);
  EXPECT_OK(world.hook(1).LoadOwn(state, 0));
  EXPECT_EQ(world.hook(1).ErrorNorm(), 0);
}

TEST_P(HookConformance, AnOwnStateThatDoesNotFitChangesNothing) {
  const HookCase& hook = GetParam();
  HookWorld world = MakeWorld(hook, 2);
  RunSteps(hook, world, 0, hook.start_step + 3);
  const HookState own = world.SaveOwn(0);
  const auto refuses = [&](const HookState& state, double scale) {
    const absl::StatusCode code = world.hook(0).LoadOwn(state, scale).code();
    EXPECT_THAT(code, AnyOf(absl::StatusCode::kFailedPrecondition,
                            absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(SerializeHookState(world.SaveOwn(0)), SerializeHookState(own));
  };
  HookState other = own;
  other.spec = "somebody_elses";
  refuses(other, 1);
  refuses(own, -1);
  refuses(own, std::numeric_limits<double>::quiet_NaN());
  for (size_t i = 0; i < own.tensors.size(); ++i) {
    HookState damaged = own;
    damaged.tensors[i].data += "more";
    refuses(damaged, i % 2 == 0 ? 1 : 0);
    damaged = own;
    damaged.tensors[i].parameter = "no such parameter";
    refuses(damaged, 1);
    damaged = own;
    damaged.tensors[i].kind = "unheard_of";
    refuses(damaged, 1);
    damaged = own;
    damaged.tensors.push_back(own.tensors[i]);
    refuses(damaged, 1);
  }
  // A checkpoint's mean errors are no rank's own, nor the other way round.
  const HookState checkpoint = world.Save();
  if (Norm(MeanError(checkpoint, Parameters(hook), 2)) == 0) return;
  refuses(checkpoint, 1);
  EXPECT_FALSE(world.hook(0).LoadState(own, 0, 2).ok());
  EXPECT_EQ(SerializeHookState(world.SaveOwn(0)), SerializeHookState(own));
  // Nothing of what was refused is left.
  EXPECT_OK(world.Load(checkpoint));
  HookWorld clean = MakeWorld(hook, 2);
  EXPECT_OK(clean.Load(checkpoint));
  EXPECT_EQ(SerializeHookState(world.SaveOwn(0)),
            SerializeHookState(clean.SaveOwn(0)));
}

}  // namespace
}  // namespace coxswain
