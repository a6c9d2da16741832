#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/reducer_team.h"

// Another hook takes over between two steps of a reducer.

namespace coxswain {
namespace {

constexpr char kPowerSgd[] = "powersgd(rank=2,start_step=2)";

// Each rank of `to` takes over what the same rank of `from` keeps.
void Carry(HookWorld& from, HookWorld& to, int size) {
  for (int rank = 0; rank < size; ++rank) {
    ASSERT_OK(to.hook(rank).LoadOwn(from.SaveOwn(rank), /*error_scale=*/1));
  }
}

// ChangeHook with carry_state is, to the bit, a restart on the same ranks with
// the errors that each has kept.
TEST(ChangeHookTest, EachRankCarriesItsOwnState) {
  const std::string narrow = absl::StrCat("fp16(", kPowerSgd, ")");
  ReducerTeam team(kPowerSgd, 3);
  HookWorld wide = UnchangedWorld(kPowerSgd, 3);
  ExpectSameSteps(team, wide, 0, 6);

  team.ChangeHook(narrow, true);
  HookWorld thin = UnchangedWorld(narrow, 3);
  Carry(wide, thin, 3);
  EXPECT_EQ(team.hook(0).step(), 6);
  const auto local = team.Local(6);
  const Gradients result = team.Step(6);
  EXPECT_EQ(result, thin.Step(local));
  // Nearly that of the run without a change; what differs is the rounding of
  // what travels to 11 bits.
  const double distance = RelativeDifference(result, wide.Step(local));
  EXPECT_LE(distance, 5e-3);
  EXPECT_GT(distance, 1e-8);
  ExpectSameSteps(team, thin, 7, 9);

  team.ChangeHook(kPowerSgd, true);
  HookWorld back = UnchangedWorld(kPowerSgd, 3);
  Carry(thin, back, 3);
  ExpectSameSteps(team, back, 9, 12);
}

// The results are, to the bit, those of an unchanged run. Of the state, which
// for int8 has as much as the model on each rank, nothing travels.
TEST(ChangeHookTest, AWrapperIsPutOnWithoutATrace) {
  for (const std::string spec : {kPowerSgd, "int8"}) {
    for (const int size : {2, 3}) {
      ReducerTeam team(spec, size);
      ReducerTeam unchanged(spec, size);
      const auto expect_same_steps = [&](int64_t from, int64_t to) {
        for (int64_t step = from; step < to; ++step) {
          EXPECT_EQ(team.Step(step), unchanged.Step(step)) << spec << step;
        }
      };
      expect_same_steps(0, 6);
      const Layout layout = team.BucketsNow();
      const int64_t before = team.communicator(0).payload_bytes();
      team.ChangeHook(absl::StrCat("stats(", spec, ")"), true);
      EXPECT_LE(team.communicator(0).payload_bytes() - before, 64) << spec;
      EXPECT_EQ(team.BucketsNow(), layout);
      expect_same_steps(6, 12);
      EXPECT_EQ(team.hook(0).step(), 12);
    }
  }
}

TEST(ChangeHookTest, WithoutItsStateTheHookBeginsAnew) {
  ReducerTeam team(kPowerSgd, 2);
  HookWorld unchanged = UnchangedWorld(kPowerSgd, 2);
  ExpectSameSteps(team, unchanged, 0, 6);
  team.ChangeHook(kPowerSgd, false);
  HookWorld anew = UnchangedWorld(kPowerSgd, 2);
  EXPECT_EQ(team.hook(0).step(), 0);
  for (int64_t step = 6; step < 10; ++step) {
    const auto local = team.Local(step);
    const Gradients result = team.Step(step);
    EXPECT_EQ(result, anew.Step(local));
    EXPECT_GT(RelativeDifference(result, unchanged.Step(local)), 0.1);
  }
}

TEST(ChangeHookTest, AnotherKindOfHookTakesOverWithoutState) {
  ReducerTeam team(kPowerSgd, 3);
  HookWorld unchanged = UnchangedWorld(kPowerSgd, 3);
  ExpectSameSteps(team, unchanged, 0, 5);
  team.ChangeHook("allreduce", true, {"powersgd", "allreduce"});
  EXPECT_EQ(team.hook(0).spec(), kPowerSgd);
  ExpectSameSteps(team, unchanged, 5, 7);  // nothing has happened
  team.ChangeHook("allreduce", false);
  for (int64_t step = 7; step < 9; ++step) {
    const Gradients mean = MeanOver(team.Local(step));
    EXPECT_LE(RelativeDifference(team.Step(step), mean), 1e-14);
  }
}

TEST(ChangeHookTest, AnotherRankIsRefusedWithTheDifference) {
  constexpr char kWider[] = "powersgd(rank=4,start_step=2)";
  ReducerTeam team(kPowerSgd, 2);
  HookWorld unchanged = UnchangedWorld(kPowerSgd, 2);
  ExpectSameSteps(team, unchanged, 0, 5);
  team.ChangeHook(kWider, true, {"does not fit", "option rank", "2", "4"});
  ExpectSameSteps(team, unchanged, 5, 7);
  team.ChangeHook(kWider, false);
  HookWorld anew = UnchangedWorld(kWider, 2);
  ExpectSameSteps(team, anew, 7, 11);
}

}  // namespace
}  // namespace coxswain
