#include "schedule/terms.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::schedule {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ScheduleTermsTest, EveryTermIsReadAsItIsWritten) {
  const std::map<std::string, std::string> other = {
      {"adjust_scheduler", "global_batch"},
      {"checkpoint_every", "50"},
      {"checksum_every", "7"},
      {"commit_vote", "true"},
      {"enforcement", "strict"},
      {"hook_state", "reset"},
      {"max_steps", "1000"},
      {"on_resize", "keep_global_batch"},
      {"on_stall", "warn"},
      {"pipeline", "gpipe(order=fifo)"},
      {"progress_timeout", "1m30s"},
      {"stall_timeout", "1.5s"},
      {"sync_each_batch", "true"},
      {"tail", "drop"},
      {"uneven_data", "end_at_first"},
      {"weighting", "tokens"},
      {"windows", "program"}};
  ASSERT_OK_AND_ASSIGN(const Terms terms, Terms::FromMap(other));
  EXPECT_EQ(terms.ToMap(), other);
  EXPECT_EQ(terms.Changed().size(), other.size());
  EXPECT_EQ(SettingList().size(), other.size());
  EXPECT_NE(terms, Terms());
}

TEST(ScheduleTermsTest, ValuesLandInTheirFields) {
  Terms terms;
  ASSERT_OK(terms.Set("weighting", "samples"));
  ASSERT_OK(terms.Set("tail", "carry"));
  ASSERT_OK(terms.Set("enforcement", "off"));
  EXPECT_EQ(terms.weighting, Weighting::kSamples);
  EXPECT_EQ(terms.tail, TailPolicy::kCarry);
  EXPECT_EQ(terms.enforcement, Enforcement::kOff);
  EXPECT_THAT(terms.Changed(), ElementsAre("enforcement=off", "tail=carry",
                                           "weighting=samples"));
}

TEST(ScheduleTermsTest, APipelineHasOneForm) {
  Terms terms;
  for (const auto& [text, form] : std::map<std::string, std::string>{
           {"interleaved", "interleaved(chunks=2)"},
           {"interleaved(chunks=3)", "interleaved(chunks=3)"},
           {"gpipe(order=lifo)", "gpipe"},
           {"1f1b()", "1f1b"},
           {"none", ""}}) {
    ASSERT_OK(terms.Set("pipeline", text));
    EXPECT_EQ(terms.pipeline, form);
    EXPECT_EQ(terms.ToMap().at("pipeline"), form.empty() ? "none" : form);
  }
  ASSERT_OK(terms.Set("pipeline", "zb_h1"));
  const auto refused = [&terms](const char* value) {
    return terms.Set("pipeline", value);
  };
  EXPECT_THAT(refused("1f1c"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("pipeline=1f1c is not valid"),
                             HasSubstr("there are gpipe, 1f1b, interleaved "
                                       "and zb_h1"))));
  EXPECT_THAT(refused("interleaved(chunks=1)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("write chunks=2 to 64")));
  EXPECT_FALSE(refused("").ok());
  EXPECT_EQ(terms.pipeline, "zb_h1");
}

TEST(ScheduleTermsTest, DefaultsAreValidAndChangeNothing) {
  EXPECT_OK(Terms().Validate());
  EXPECT_THAT(Terms().Changed(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const Terms terms, Terms::FromMap({}));
  EXPECT_EQ(terms, Terms());
}

TEST(ScheduleTermsTest, UnknownTermsAndValuesAreNamedWithTheValidOnes) {
  Terms terms;
  EXPECT_THAT(terms.Set("tails", "flush"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"tails\""), HasSubstr("weighting"))));
  EXPECT_THAT(terms.Set("tail", "keep"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("flush|carry|drop")));
  for (const char* value : {"-1", "x", "", "1.5"}) {
    EXPECT_FALSE(terms.Set("max_steps", value).ok()) << value;
  }
  for (const char* value : {"5", "0s", "-1s", "99ms", "169h", "inf"}) {
    EXPECT_FALSE(terms.Set("progress_timeout", value).ok()) << value;
  }
  for (const char* value : {"2", "0s", "499ms", "169h", "inf", "none", ""}) {
    EXPECT_FALSE(terms.Set("stall_timeout", value).ok()) << value;
  }
  EXPECT_EQ(terms, Terms());
}

TEST(ScheduleTermsTest, AnEvictionOfStalledRanksIsAskedFor) {
  Terms terms;
  EXPECT_EQ(terms.stall_timeout, absl::InfiniteDuration());
  EXPECT_EQ(terms.ToMap().at("stall_timeout"), "off");
  ASSERT_OK(terms.Set("stall_timeout", "500ms"));
  EXPECT_EQ(terms.stall_timeout, absl::Milliseconds(500));
  EXPECT_THAT(terms.Changed(), ElementsAre("stall_timeout=500ms"));
  ASSERT_OK(terms.Set("stall_timeout", "off"));
  EXPECT_EQ(terms, Terms());
}

TEST(ScheduleTermsTest, TermsThatContradictEachOtherAreRefused) {
  using Map = std::map<std::string, std::string>;
  for (const Map& values :
       {Map{{"sync_each_batch", "true"}, {"weighting", "tokens"}},
        Map{{"sync_each_batch", "true"}, {"uneven_data", "wait_for_all"}},
        Map{{"sync_each_batch", "true"}, {"on_resize", "keep_global_batch"}},
        Map{{"on_resize", "keep_global_batch"}},
        Map{{"windows", "program"}, {"sync_each_batch", "true"}},
        Map{{"windows", "program"}, {"uneven_data", "wait_for_all"}},
        Map{{"tail", "carry"}, {"uneven_data", "end_at_first"}},
        Map{{"pipeline", "1f1b"}, {"sync_each_batch", "true"}},
        Map{{"pipeline", "1f1b"}, {"windows", "program"}},
        Map{{"enforcement", "off"}, {"commit_vote", "true"}},
        Map{{"enforcement", "off"}, {"checksum_every", "1"}}}) {
    ASSERT_OK_AND_ASSIGN(const Terms terms, Terms::FromMap(values));
    EXPECT_THAT(terms.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("do not go together")));
  }
}

TEST(ScheduleTermsTest, AGlobalBatchIsKeptWhereDataMayEndUnevenly) {
  Terms terms;
  terms.on_resize = OnResize::kKeepGlobalBatch;
  EXPECT_THAT(terms.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("choose wait_for_all or end_at_first")));
  for (UnevenData uneven : {UnevenData::kWaitForAll, UnevenData::kEndAtFirst}) {
    terms.uneven_data = uneven;
    EXPECT_OK(terms.Validate());
  }
}

TEST(PlannedCheckpointTest, ComesAfterEverySoManyStepsAndNeverByDefault) {
  EXPECT_EQ(PlannedCheckpoint(3, 3), "checkpoint_every=3");
  EXPECT_EQ(PlannedCheckpoint(3, 6), "checkpoint_every=3");
  EXPECT_EQ(PlannedCheckpoint(1, 1), "checkpoint_every=1");
  for (const int64_t step : {0, 1, 2, 4, 5, 7}) {
    EXPECT_EQ(PlannedCheckpoint(3, step), "") << step;
  }
  EXPECT_EQ(PlannedCheckpoint(Terms().checkpoint_every, 1), "");
}

TEST(MicroBatchShareTest, RemaindersGoToTheFirstRanks) {
  EXPECT_EQ(MicroBatchShare(8, 3, 0), 3);
  EXPECT_EQ(MicroBatchShare(8, 3, 1), 3);
  EXPECT_EQ(MicroBatchShare(8, 3, 2), 2);
  for (int world = 1; world <= 9; ++world) {
    int64_t sum = 0;
    for (int rank = 0; rank < world; ++rank) {
      sum += MicroBatchShare(9, world, rank);
    }
    EXPECT_EQ(sum, 9) << world;
  }
  EXPECT_EQ(MicroBatchShare(2, 3, 2), 1);
}

}  // namespace
}  // namespace coxswain::schedule
