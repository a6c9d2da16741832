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

// ChangeHook with carry_state is, to the bit, a restart from a checkpoint.
TEST(ChangeHookTest, CarriedStateIsThatOfACheckpoint) {
  const std::string narrow = absl::StrCat("fp16(", kPowerSgd, ")");
  ReducerTeam team(kPowerSgd, 3);
  HookWorld wide = UnchangedWorld(kPowerSgd, 3);
  ExpectSameSteps(team, wide, 0, 6);

  team.ChangeHook(narrow, true);
  HookWorld thin = UnchangedWorld(narrow, 3);
  ASSERT_OK(thin.Load(wide.Save()));
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
  ASSERT_OK(back.Load(thin.Save()));
  ExpectSameSteps(team, back, 9, 12);
}

// What the hook carries is the mean of the ranks' errors, and only the mean
// enters an average: in real numbers, the results are those of an unchanged
// run. In float64 the errors are summed in another order, which costs some
// 1e-16 of them. Projections and orthogonalisation enlarge that by the
// condition of the factors, which for noise is a few; each step of the power
// iteration does so again. 1e-12 and 1e-11 leave a factor of thousands, and are
// far below what a lost error or factor would make (see the next test).
TEST(ChangeHookTest, AWrapperIsPutOnWithoutATrace) {
  for (const int size : {2, 3}) {
    ReducerTeam team(kPowerSgd, size);
    HookWorld unchanged = UnchangedWorld(kPowerSgd, size);
    ExpectSameSteps(team, unchanged, 0, 6);
    const Layout layout = team.BucketsNow();
    team.ChangeHook(absl::StrCat("stats(", kPowerSgd, ")"), true);
    EXPECT_EQ(team.BucketsNow(), layout);
    for (int64_t step = 6; step < 12; ++step) {
      EXPECT_EQ(team.reducer(0).step(), step - 1);
      const auto local = team.Local(step);
      EXPECT_LE(RelativeDifference(team.Step(step), unchanged.Step(local)),
                step == 6 ? 1e-12 : 1e-11)
          << "step " << step;
    }
    EXPECT_EQ(team.hook(0).step(), 12);
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
