#include "hooks/registry/planned_hook.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

schedule::Plan Plan(const std::string& hook, int64_t start_step) {
  schedule::Plan plan;
  plan.version = 3;
  plan.hook = hook;
  plan.compression_start_step = start_step;
  return plan;
}

TEST(PlannedHookTest, FollowsThePlansSpec) {
  ASSERT_OK_AND_ASSIGN(auto hook, MakePlannedHook(Plan("bf16", -1)));
  EXPECT_EQ(hook->spec(), "bf16");
}

TEST(PlannedHookTest, ThePlansStartGoesBeforeTheHooksOwn) {
  for (const char* spec : {"powersgd(rank=2)", "powersgd(rank=2,start_step=20)",
                           "powersgd(rank=2,start_powerSGD_iter=20)"}) {
    ASSERT_OK_AND_ASSIGN(auto hook, MakePlannedHook(Plan(spec, 50)));
    EXPECT_EQ(hook->spec(), "powersgd(rank=2,start_step=50)") << spec;
  }
}

TEST(PlannedHookTest, TheStartReachesAWrappedHook) {
  ASSERT_OK_AND_ASSIGN(auto hook,
                       MakePlannedHook(Plan("fp16(powersgd(rank=2))", 7)));
  EXPECT_EQ(hook->spec(), "fp16(powersgd(rank=2,start_step=7))");
}

TEST(PlannedHookTest, TheStartReachesEveryHookThatHasOne) {
  for (const HookDescription& described : ListHooks()) {
    bool starts = false;
    for (const OptionDescription& option : described.options) {
      starts |= option.name == "start_step";
    }
    if (!starts) continue;
    const std::string started = described.name + "(start_step=123)";
    ASSERT_OK_AND_ASSIGN(auto hook, MakePlannedHook(Plan(described.name, 123)));
    EXPECT_EQ(hook->spec(), started);
    ASSERT_OK_AND_ASSIGN(
        hook,
        MakePlannedHook(Plan("stats(fp16(" + described.name + "))", 123)));
    EXPECT_EQ(hook->spec(), "stats(fp16(" + started + "))");
    // The averager, where there is one, begins with its hook.
    ASSERT_OK_AND_ASSIGN(const auto averager,
                         MakePlannedAverager(Plan(described.name, 123)));
    if (averager != nullptr) {
      EXPECT_EQ(averager->spec(), started);
    }
  }
}

TEST(PlannedHookTest, MostHooksHaveNoAverager) {
  ASSERT_OK_AND_ASSIGN(const auto none,
                       MakePlannedAverager(Plan("stats(fp16)", -1)));
  EXPECT_EQ(none, nullptr);
  EXPECT_THAT(MakePlannedAverager(Plan("powersgdd", -1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("version 3 of the job's plan")));
}

TEST(PlannedHookTest, ErrorsSayThatThePlanIsTheSource) {
  EXPECT_THAT(MakePlannedHook(Plan("powersgdd", -1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("version 3 of the job's plan"),
                             HasSubstr("powersgdd"))));
  EXPECT_THAT(MakePlannedHook(Plan("allreduce", 5)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'allreduce' has no start_step")));
  EXPECT_THAT(
      MakePlannedHook(Plan("powersgd", 1)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least 2")));
}

}  // namespace
}  // namespace coxswain
