#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/every_hook.h"
#include "tests/hooks/reducer_team.h"

// What hooks remember, while the reducer changes the buckets and parameters
// around them; and from when on it does not.

namespace coxswain::layout_change_test {
namespace {

constexpr char kPowerSgd[] = "powersgd(rank=2,start_step=2)";

// Returns the values of parameters whose registration numbers are these and
// above.
Gradients From(size_t first, const Gradients& values) {
  return Gradients(values.begin() + static_cast<int64_t>(first), values.end());
}

// Without p3, with another parameter before all others.
std::vector<ParameterSpec> OtherParameters() {
  std::vector<ParameterSpec> parameters = OddParameters(DType::kFloat64);
  parameters.erase(parameters.begin() + 3);
  parameters.insert(parameters.begin(),
                    NamedParameter("added.weight", {14, 20}, DType::kFloat64));
  return parameters;
}

// Hooks whose results depend on what earlier steps left behind, but not on
// how gradients are divided into buckets.
class StateOfParametersTest : public testing::TestWithParam<std::string> {};

TEST_P(StateOfParametersTest, SurvivesChangesOfBucketsAndTheRebuild) {
  ReducerTeam team(GetParam(), 3);
  HookWorld unchanged = UnchangedWorld(GetParam(), 3);
  const int64_t version = team.reducer(0).layout_version();
  ExpectSameSteps(team, unchanged, 0, 4);
  EXPECT_GT(team.reducer(0).layout_version(), version);  // rebuilt
  for (const BucketPlanOptions& buckets :
       {BucketPlanOptions{1, 1}, {1 << 20, 1 << 20}, {2000, 300}}) {
    const Layout before = team.BucketsNow();
    team.ChangeBuckets(buckets);
    EXPECT_NE(team.BucketsNow(), before);
    const int64_t step = team.reducer(0).step() + 1;
    ExpectSameSteps(team, unchanged, step, step + 3);
  }
  EXPECT_EQ(SerializeHookState(team.Save()),
            SerializeHookState(unchanged.Save()));
}

TEST_P(StateOfParametersTest, SurvivesParametersThatComeAndGo) {
  ReducerTeam team(GetParam(), 2);
  HookWorld expected = UnchangedWorld(GetParam(), 2);
  ExpectSameSteps(team, expected, 0, 5);
  const Gradients error = MeanError(team.Save(), team.parameters(), 2);
  EXPECT_NE(error[8], std::vector<double>(error[8].size()));
  team.ChangeParameters(OtherParameters());
  expected.Reconfigure(OtherParameters());
  const Gradients left = MeanError(team.Save(), team.parameters(), 2);
  EXPECT_EQ(From(4, left), From(4, error));
  EXPECT_EQ(left[1], error[0]);
  ExpectSameSteps(team, expected, 5, 8);
  team.ChangeParameters(OddParameters(DType::kFloat64));
  expected.Reconfigure(OddParameters(DType::kFloat64));
  ExpectSameSteps(team, expected, 8, 11);
}

// A state with errors that waits, since it was loaded with a later start: the
// rebuild comes while nothing is compressed, as if there were no state.
TEST_P(StateOfParametersTest, SurvivesTheRebuildWhileItWaitsForItsStart) {
  ASSERT_OK_AND_ASSIGN(const std::string later, WithStartStep(GetParam(), 8));
  ReducerTeam team(later, 2);
  HookWorld first = UnchangedWorld(GetParam(), 2);
  for (int64_t step = 0; step < 5; ++step) first.Step(team.Local(step));
  const HookState state = first.Save();
  ASSERT_FALSE(state.tensors.empty());
  team.Load(state);
  HookWorld expected = UnchangedWorld(later, 2);
  ASSERT_OK(expected.Load(state));
  const Layout before = team.BucketsNow();
  ExpectSameSteps(team, expected, 5, 7);
  EXPECT_NE(team.BucketsNow(), before);
  ExpectSameSteps(team, expected, 7, 12);
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, StateOfParametersTest,
    testing::Values(kPowerSgd, "powersgd(rank=2,start_step=2,mode=pytorch)",
                    "acp_sgd(rank=2,start_step=2)",
                    "fp16(powersgd(rank=2,start_step=2))"),
    [](const auto& info) { return absl::StrCat("Case", info.index); });

// Hooks whose errors survive, although other buckets give other results: all
// that the steps' averages had has come out, or is still owed.
class ErrorOfBucketsTest : public testing::TestWithParam<std::string> {};

TEST_P(ErrorOfBucketsTest, SurvivesAllChanges) {
  ReducerTeam team(GetParam(), 3);
  Gradients came, owed_and_came;
  const auto run = [&](int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      const Gradients mean = MeanOver(team.Local(step));
      AddTo(came, mean);
      AddTo(owed_and_came, team.Step(step));
    }
    Gradients all = MeanError(team.Save(), team.parameters(), 3);
    AddTo(all, owed_and_came);
    EXPECT_LE(RelativeDifference(all, came), 1e-12);
  };
  run(0, 5);
  team.ChangeBuckets({1, 1});
  run(5, 8);
  team.ChangeBuckets({1 << 20, 1 << 20});
  run(8, 11);
  const Gradients error = MeanError(team.Save(), team.parameters(), 3);
  team.ChangeParameters(OtherParameters());
  const Gradients left = MeanError(team.Save(), team.parameters(), 3);
  EXPECT_LE(RelativeDifference(From(4, left), From(4, error)), 1e-14);
  EXPECT_EQ(left[1], error[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, ErrorOfBucketsTest,
    testing::Values("int8(block=32)", "int8(block=32,start_step=3)",
                    "batched_powersgd(rank=2,start_step=2)"),
    [](const auto& info) { return absl::StrCat("Case", info.index); });

// The rebuild comes before the first compressed step, and none after it. The
// ranks mark in different orders; the layout is that of rank 0's.
TEST(FrozenLayoutTest, NothingIsCompressedBeforeIt) {
  for (const char* spec :
       {"int8(start_step=1)",
        "powersgd(start_step=1,error_feedback=false,warm_start=false)",
        "powersgd(start_step=2)", "acp_sgd(start_step=3)",
        "stats(bf16(powersgd(start_step=2)))", "allreduce",
        "batched_powersgd(start_step=4)"}) {
    SCOPED_TRACE(spec);
    ReducerTeam team(spec, 3);
    EXPECT_FALSE(team.reducer(0).layout_frozen());
    const Layout before = team.BucketsNow();
    EXPECT_EQ(before[0][0], 9);  // reversed registration order
    team.Step(0);
    const Layout rebuilt = team.BucketsNow();
    EXPECT_EQ(rebuilt[0][0], 0);  // rank 0's
    const int64_t version = team.reducer(0).layout_version();
    for (int64_t step = 1; step < 7; ++step) {
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_TRUE(team.reducer(rank).layout_frozen());
        team.MarkFrom(rank, static_cast<int>(step + rank));
      }
      team.Step(step);
      EXPECT_EQ(team.BucketsNow(), rebuilt);
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(team.hook(rank).layout(), rebuilt);
      }
    }
    EXPECT_EQ(team.reducer(0).layout_version(), version);
  }
}

// Expects a team to exchange in the buckets of registration only.
void ExpectNoRebuild(ReducerTeam& team) {
  const Layout before = team.BucketsNow();
  EXPECT_EQ(before[0][0], 9);
  const int64_t version = team.reducer(0).layout_version();
  const int64_t first = team.hook(0).step();
  for (int64_t step = first; step < first + 3; ++step) {
    team.Step(step);
    for (int rank = 0; rank < team.size(); ++rank) {
      EXPECT_TRUE(team.reducer(rank).layout_frozen());
      EXPECT_EQ(team.hook(rank).layout(), before);
    }
    EXPECT_EQ(team.BucketsNow(), before);
  }
  EXPECT_EQ(team.reducer(0).layout_version(), version);
}

TEST(FrozenLayoutTest, AHookThatCompressesAtOnceIsNeverRebuilt) {
  for (const char* spec :
       {"int8",
        "powersgd(start_step=0,error_feedback=false,warm_start=false)"}) {
    ReducerTeam team(spec, 2);
    ExpectNoRebuild(team);
  }
}

// A restored hook compresses from the first step on, whatever its start_step.
TEST(FrozenLayoutTest, ARestoredHookIsNeverRebuilt) {
  for (const std::string spec :
       {kPowerSgd, "fp16(powersgd(start_step=2))", "int8(start_step=2)",
        "acp_sgd(start_step=2)", "batched_powersgd(start_step=2)"}) {
    SCOPED_TRACE(spec);
    ReducerTeam saved(spec, 3);
    for (int64_t step = 0; step < 4; ++step) saved.Step(step);
    ReducerTeam restored(spec, 2);
    restored.Load(saved.Save());
    ExpectNoRebuild(restored);
  }
}

// The step at which a saved run has not compressed yet is rebuilt as usual.
TEST(FrozenLayoutTest, AHookRestoredBeforeItsStartIsRebuilt) {
  ReducerTeam saved("powersgd(start_step=6)", 2);
  for (int64_t step = 0; step < 3; ++step) saved.Step(step);
  ReducerTeam restored("powersgd(start_step=6)", 2);
  restored.Load(saved.Save());
  const Layout before = restored.BucketsNow();
  for (int64_t step = 3; step < 9; ++step) {
    EXPECT_EQ(restored.reducer(0).layout_frozen(), step > 3) << step;
    restored.Step(step);
    EXPECT_EQ(restored.BucketsNow() == before, false) << step;
  }
}

// A hook that needs it takes over before the rebuild.
TEST(FrozenLayoutTest, AChangeOfTheHookFreezesToo) {
  ReducerTeam team("allreduce", 2);
  const Layout before = team.BucketsNow();
  team.ChangeHook("int8", false);
  team.Step(0);
  EXPECT_TRUE(team.reducer(0).layout_frozen());
  EXPECT_EQ(team.BucketsNow(), before);
}

}  // namespace
}  // namespace coxswain::layout_change_test
