#include "cli/plan_change.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "hooks/registry/registry.h"
#include "schedule/schedule_wire.h"
#include "schedule/terms.h"
#include "server/describe/json.h"
#include "server/plan/plan_record.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string TextOf(const absl::StatusOr<std::string>& text) {
  return text.ok() ? *text : text.status().ToString();
}

auto IsInvalid(const std::string& text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

schedule::Plan PlanWith(const std::string& hook) {
  schedule::Plan plan;
  plan.version = 3;
  plan.accumulation_steps = 2;
  plan.hook = hook;
  return plan;
}

absl::StatusOr<schedule::Plan> Change(const schedule::Plan& plan,
                                      const std::vector<std::string>& words) {
  const auto change = PlanChange::Parse(words);
  if (!change.ok()) return change.status();
  return change->ApplyTo(plan);
}

TEST(PlanChangeTest, ChangesWhatItNamesAndNothingElse) {
  schedule::Plan plan = PlanWith("allreduce");
  plan.terms.tail = schedule::TailPolicy::kCarry;
  ASSERT_OK_AND_ASSIGN(
      const schedule::Plan changed,
      Change(plan, {"accumulation=8", "max_steps=100", "at=next"}));
  EXPECT_EQ(changed.accumulation_steps, 8);
  EXPECT_EQ(changed.hook, "allreduce");
  EXPECT_EQ(changed.terms.tail, schedule::TailPolicy::kCarry);
  EXPECT_THAT(server::ChangedTerms(schedule::ToWire(changed)),
              ElementsAre("max_steps=100", "tail=carry"));
  EXPECT_THAT(Differences(schedule::ToWire(plan), schedule::ToWire(changed)),
              ElementsAre("accumulation 2 -> 8", "max_steps 0 -> 100"));
}

TEST(PlanChangeTest, HookSpecsBecomeCanonical) {
  ASSERT_OK_AND_ASSIGN(
      const PlanChange change,
      PlanChange::Parse({"hook=power_sgd( start_powerSGD_iter=7 )"}));
  EXPECT_EQ(change.words.at("hook"), "powersgd(start_step=7)");
}

TEST(PlanChangeTest, PipelinesBecomeCanonical) {
  const schedule::Plan plan = PlanWith("allreduce");
  ASSERT_OK_AND_ASSIGN(const schedule::Plan changed,
                       Change(plan, {"pipeline=interleaved"}));
  EXPECT_THAT(Differences(schedule::ToWire(plan), schedule::ToWire(changed)),
              ElementsAre("pipeline none -> interleaved(chunks=2)"));
  EXPECT_THAT(Change(plan, {"pipeline=1f1b", "sync_each_batch=true"}),
              IsInvalid("pipeline and sync_each_batch do not go together"));
}

TEST(PlanChangeTest, AtNamesWhereAChangeBegins) {
  const auto at = [](const std::string& word) {
    const auto change = PlanChange::Parse({word});
    EXPECT_OK(change);
    return change.ok() ? change->at_step.value_or(-9) : -9;
  };
  EXPECT_EQ(at("at=next"), schedule::Plan::kAtNextStep);
  EXPECT_EQ(at("at=generation"), schedule::Plan::kWithNextGeneration);
  EXPECT_EQ(at("at=200"), 200);
  EXPECT_EQ(BeginningText(200), "step 200");
}

TEST(PlanChangeTest, WrongWordsAreNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"accumulation", "'accumulation' is not NAME=VALUE"},
      {"=8", "'=8' is not NAME=VALUE"},
      {"accumulation=0", "accumulation=0 is not valid"},
      {"accumulation=two", "the micro-batches of a step, from 1"},
      {"accumulation=4294967297", "accumulation=4294967297 is not valid"},
      {"hook=powresgd", "powresgd"},
      {"hook=powersgd(rank=0)", "rank must be between 1 and 1024"},
      {"compression_start=-2", "-1 for the hook's own"},
      {"at=0", "at=0 is not valid: write next"},
      {"at=now", "a step, from 1"},
      {"tail=cut", "flush|carry|drop"},
      {"progress_timeout=1ms", "progress_timeout=1ms is not valid"},
      {"pipeline=1f1", "there are gpipe, 1f1b, interleaved and zb_h1"},
      {"tial=drop",
       "a plan has nothing called \"tial\"; there are "
       "accumulation, hook, compression_start, adjust_scheduler"},
      {"att=5", "and for a change at, where it begins"},
      {"", "'' is not NAME=VALUE"},
  };
  for (const auto& [word, expected] : cases) {
    SCOPED_TRACE(word);
    EXPECT_THAT(PlanChange::Parse({word}), IsInvalid(expected));
  }
  EXPECT_THAT(PlanChange::Parse({"tail=drop", "tail=carry"}),
              IsInvalid("tail is given twice"));
}

TEST(PlanChangeTest, EveryTermCanBeNamed) {
  for (const auto& [name, value] : schedule::Terms().ToMap()) {
    EXPECT_OK(PlanChange::Parse({absl::StrCat(name, "=", value)}));
  }
}

TEST(PlanChangeTest, TheResultMustGoTogether) {
  schedule::Plan plan = PlanWith("allreduce");
  plan.terms.sync_each_batch = true;
  EXPECT_THAT(Change(plan, {"weighting=tokens"}),
              IsInvalid("sync_each_batch and weighting"));
  EXPECT_OK(Change(plan, {"weighting=tokens", "sync_each_batch=false"}));
}

TEST(PlanChangeTest, CompressionStartNeedsAHookThatHasIt) {
  EXPECT_THAT(PlanChange::Parse({"hook=fp16", "compression_start=10"}),
              IsInvalid("start_step"));
  schedule::Plan plan = PlanWith("powersgd(rank=2)");
  plan.compression_start_step = 10;
  EXPECT_THAT(Change(plan, {"hook=fp16"}),
              IsInvalid("compression_start=-1 leaves it to the hook"));
  EXPECT_OK(Change(plan, {"hook=fp16", "compression_start=-1"}));
  // A hook that only the workers know does not keep the rest from changing.
  EXPECT_OK(Change(PlanWith("my_own_hook"), {"accumulation=4"}));
}

TEST(PlanChangeTest, OnlyStateThatFitsIsCarriedOver) {
  const auto within = [](const std::string& from, const std::string& to) {
    return CheckChangeWithinGeneration(PlanWith(from), PlanWith(to));
  };
  EXPECT_OK(within("powersgd", "powersgd"));
  EXPECT_OK(within("powersgd", "fp16(powersgd)"));
  EXPECT_OK(within("powersgd", "powersgd(start_step=5)"));
  EXPECT_OK(within("my_own_hook", "my_own_hook"));
  EXPECT_THAT(within("allreduce", "powersgd"),
              IsInvalid("write hook_state=reset to begin without it"));
  EXPECT_THAT(within("powersgd", "powersgd(rank=4)"),
              IsInvalid("hook_state=reset"));
  schedule::Plan reset = PlanWith("powersgd");
  reset.terms.hook_state = schedule::HookStatePolicy::kReset;
  EXPECT_OK(CheckChangeWithinGeneration(PlanWith("allreduce"), reset));
}

TEST(PlanChangeTest, AveragersAreNoticed) {
  const schedule::Plan local = PlanWith("post_local_sgd(period=4)");
  const schedule::Plan plain = PlanWith("allreduce");
  EXPECT_TRUE(ChangesAverager(plain, local));
  EXPECT_TRUE(ChangesAverager(local, plain));
  EXPECT_TRUE(ChangesAverager(local, PlanWith("post_local_sgd(period=8)")));
  EXPECT_FALSE(ChangesAverager(local, local));
  EXPECT_FALSE(ChangesAverager(plain, PlanWith("bf16")));
  EXPECT_OK(
      CheckChangeWithinGeneration(local, PlanWith("post_local_sgd(period=8)")));
  EXPECT_THAT(CheckChangeWithinGeneration(plain, local),
              IsInvalid("hook_state=reset"));
  EXPECT_THAT(CheckChangeWithinGeneration(local, PlanWith("allreduce")),
              IsInvalid("optimizer has its own state"));
}

TEST(ReadPlanOverridesTest, JoinsSortsAndChecks) {
  EXPECT_EQ(TextOf(ReadPlanOverrides({})), "");
  EXPECT_EQ(
      TextOf(ReadPlanOverrides({" tail=drop  max_steps=5", "accumulation=4"})),
      "accumulation=4 max_steps=5 tail=drop");
  EXPECT_EQ(TextOf(ReadPlanOverrides(
                {"hook=powersgd(rank=4, start_step=9) tail=drop"})),
            "hook=powersgd(rank=4,start_step=9) tail=drop");
  EXPECT_THAT(ReadPlanOverrides({"tail=drop", "tail=drop"}),
              IsInvalid("twice"));
  EXPECT_THAT(ReadPlanOverrides({"tail"}), IsInvalid("NAME=VALUE"));
  EXPECT_THAT(ReadPlanOverrides({"at=next"}),
              IsInvalid("at=... cannot be given here"));
  EXPECT_THAT(ReadPlanOverrides({"hook=powersgd(rank=0)"}), IsInvalid("rank"));
  EXPECT_THAT(ReadPlanOverrides({"sync_each_batch=true weighting=tokens"}),
              IsInvalid("do not go together"));
}

TEST(PlanTextTest, TermsThatThisProgramDoesNotKnowAreShown) {
  v1::Plan plan = schedule::ToWire(PlanWith("allreduce"));
  EXPECT_THAT(server::ChangedTerms(plan), IsEmpty());
  (*plan.mutable_terms())["from_the_future"] = "yes";
  EXPECT_THAT(server::ChangedTerms(plan), ElementsAre("from_the_future=yes"));
  EXPECT_THAT(schedule::PlanFromWire(plan), IsInvalid("from_the_future"));
}

// Returns a value of the word other than the default; empty if none of those
// that it tries is valid.
std::string OtherValue(const schedule::PlanWords::value_type& word,
                       const std::string& values) {
  std::vector<std::string> candidates = absl::StrSplit(values, '|');
  candidates.insert(candidates.end(), {"7", "1m30s"});
  for (const std::string& value : candidates) {
    schedule::Settings settings;
    if (value != word.second &&
        schedule::ApplyPlanWords({{word.first, value}}, &settings).ok()) {
      return value;
    }
  }
  return "";
}

// CONTRIBUTING.md promises that a new setting needs only a row in the table of
// terms for words, messages, records, JSON and comparisons.
TEST(EverySettingTest, ComesBackFromWordsMessagesRecordsAndJson) {
  std::map<std::string, std::string> values;
  for (const schedule::SettingInfo& setting : schedule::SettingList()) {
    values[setting.name] = setting.values;
  }
  schedule::Plan plain;
  plain.hook = "bf16";
  for (const auto& word : schedule::PlanWordsOf(plain)) {
    SCOPED_TRACE(word.first);
    const std::string value = OtherValue(word, values[word.first]);
    ASSERT_NE(value, "");
    schedule::Plan plan = plain;
    ASSERT_OK(schedule::ApplyPlanWords({{word.first, value}}, &plan));
    EXPECT_FALSE(plan.SameSettings(plain));

    schedule::Plan from_words;
    ASSERT_OK(
        schedule::ApplyPlanWords(schedule::PlanWordsOf(plan), &from_words));
    EXPECT_TRUE(from_words.SameSettings(plan));

    const v1::Plan wire = schedule::ToWire(plan);
    ASSERT_OK_AND_ASSIGN(const schedule::Plan from_wire,
                         schedule::PlanFromWire(wire));
    EXPECT_TRUE(from_wire.SameSettings(plan));

    ASSERT_OK_AND_ASSIGN(const schedule::Plan from_record,
                         server::DecodePlan(server::EncodePlan(plan)));
    EXPECT_TRUE(from_record.SameSettings(plan));

    const auto json = server::PlanJson(wire);
    EXPECT_NE(json, server::PlanJson(schedule::ToWire(plain)));
    if (values.count(word.first) > 0 && !values[word.first].empty()) {
      EXPECT_EQ(json["terms"][word.first], value);
    }

    EXPECT_THAT(Differences(schedule::ToWire(plain), wire),
                ElementsAre(HasSubstr(absl::StrCat(word.first, " "))));
  }
}

}  // namespace
}  // namespace coxswain
