#include "schedule/plan_words.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::schedule {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

auto IsInvalid(const std::string& text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TEST(PlanWordsTest, SpacesSeparateThemButNotWithinParentheses) {
  ASSERT_OK_AND_ASSIGN(
      const PlanWords words,
      ParsePlanWords(
          SplitPlanText(" tail=drop  accumulation=8 "
                        "hook=powersgd(rank=4, start_step=10)\nmax_steps=5 ")));
  EXPECT_THAT(words,
              ElementsAre(Pair("accumulation", "8"),
                          Pair("hook", "powersgd(rank=4, start_step=10)"),
                          Pair("max_steps", "5"), Pair("tail", "drop")));
  EXPECT_EQ(FormatPlanWords({{"b", "2"}, {"a", "1"}}), "a=1 b=2");
  EXPECT_THAT(SplitPlanText("  "), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const PlanWords whole,
                       ParsePlanWords({"hook=@/data/my hooks/p.yaml"}));
  EXPECT_THAT(whole, ElementsAre(Pair("hook", "@/data/my hooks/p.yaml")));
}

TEST(PlanWordsTest, WrongWordsAreNamed) {
  EXPECT_THAT(ParsePlanWords({"tail"}), IsInvalid("'tail' is not NAME=VALUE"));
  EXPECT_THAT(ParsePlanWords({""}), IsInvalid("'' is not NAME=VALUE"));
  EXPECT_THAT(ParsePlanWords({"=3"}), IsInvalid("'=3' is not NAME=VALUE"));
  EXPECT_THAT(ParsePlanWords({"tail=drop", "tail=drop"}), IsInvalid("twice"));
  const auto apply = [](const PlanWords& words) {
    Settings settings;
    return ApplyPlanWords(words, &settings);
  };
  EXPECT_THAT(apply({{"accumulation", "0"}}), IsInvalid("accumulation=0"));
  EXPECT_THAT(apply({{"compression_start", "-2"}}),
              IsInvalid("or -1 for the hook's own start_step"));
  EXPECT_THAT(apply({{"hook", ""}}), IsInvalid("hook="));
  EXPECT_THAT(apply({{"tail", "cut"}}), IsInvalid("flush|carry|drop"));
  EXPECT_THAT(apply({{"tial", "drop"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a plan has nothing called \"tial\""),
                             HasSubstr("accumulation, hook, compression_start"),
                             HasSubstr("tail"))));
}

TEST(PlanWordsTest, AllOfThemMakeTheSameSettingsAgain) {
  Settings settings;
  settings.accumulation_steps = 3;
  settings.hook = "bf16";
  settings.compression_start_step = 9;
  settings.terms.tail = TailPolicy::kCarry;
  const PlanWords words = PlanWordsOf(settings);
  EXPECT_EQ(words.size(), 3 + SettingList().size());
  Settings again;
  ASSERT_OK(ApplyPlanWords(words, &again));
  EXPECT_TRUE(again.SameSettings(settings));
}

}  // namespace
}  // namespace coxswain::schedule
