#include "client/session/job.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::job_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(PlanOverridesTest, TakeThePlaceOfTheManifest) {
  ASSERT_OK_AND_ASSIGN(
      const PlanOverrides overrides,
      ParsePlanOverrides(" accumulation=8  hook=powersgd(rank=4, "
                         "start_step=10) enforcement=strict\n"
                         "compression_start=100"));
  EXPECT_THAT(overrides, UnorderedElementsAre(
                             Pair("accumulation", "8"),
                             Pair("hook", "powersgd(rank=4, start_step=10)"),
                             Pair("enforcement", "strict"),
                             Pair("compression_start", "100")));
  JobManifest manifest;
  manifest.accumulation_steps = 2;
  manifest.terms.tail = schedule::TailPolicy::kCarry;
  ASSERT_OK(schedule::ApplyPlanWords(overrides, &manifest));
  EXPECT_EQ(manifest.accumulation_steps, 8);
  EXPECT_EQ(manifest.hook, "powersgd(rank=4, start_step=10)");
  EXPECT_EQ(manifest.terms.enforcement, schedule::Enforcement::kStrict);
  EXPECT_EQ(manifest.terms.tail, schedule::TailPolicy::kCarry);
  EXPECT_EQ(manifest.compression_start_step, 100);
}

TEST(PlanOverridesTest, NoneChangeNothing) {
  ASSERT_OK_AND_ASSIGN(const PlanOverrides overrides, ParsePlanOverrides(""));
  EXPECT_TRUE(overrides.empty());
}

TEST(PlanOverridesTest, WhatTheProgramHasNotAskedForIsNamed) {
  JobManifest manifest;
  manifest.accumulation_steps = 2;
  schedule::Plan plan;
  plan.accumulation_steps = 2;
  plan.hook = manifest.hook;
  EXPECT_THAT(NotAskedFor({}, manifest, plan), UnorderedElementsAre());
  // Also where the manifest has the overrides in it.
  EXPECT_THAT(NotAskedFor({{"accumulation", "2"}}, manifest, plan),
              UnorderedElementsAre("accumulation"));
  plan.accumulation_steps = 3;
  plan.hook = "fp16";
  plan.compression_start_step = 5;
  plan.terms.tail = schedule::TailPolicy::kCarry;
  plan.terms.max_steps = 9;
  EXPECT_THAT(NotAskedFor({}, manifest, plan),
              UnorderedElementsAre("accumulation", "hook", "compression_start",
                                   "tail", "max_steps"));
}

TEST(PlanOverridesTest, WrongWordsAreNamed) {
  const auto error = [](const char* text) {
    const absl::Status status = ParsePlanOverrides(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  };
  EXPECT_THAT(error("accumulation"), HasSubstr("'accumulation' is not NAME"));
  EXPECT_THAT(error("=3"), HasSubstr("'=3' is not NAME=VALUE"));
  EXPECT_THAT(error("accumulation=0"), HasSubstr("accumulation=0"));
  EXPECT_THAT(error("accumulation=3000000000"), HasSubstr("3000000000"));
  EXPECT_THAT(error("accumulation=2 accumulation=3"), HasSubstr("twice"));
  EXPECT_THAT(error("hook="), HasSubstr("hook="));
  EXPECT_THAT(error("compression_start=-2"), HasSubstr("-2"));
  EXPECT_THAT(error("tail=cut"), HasSubstr("flush|carry|drop"));
  EXPECT_THAT(error("tial=flush"), AllOf(HasSubstr("tial"), HasSubstr("tail"),
                                         HasSubstr("compression_start")));
}

}  // namespace
}  // namespace coxswain::job_test
