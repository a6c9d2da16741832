#include "schedule/pipeline/schedule.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/action.h"

namespace coxswain::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

auto IsRefused(const std::string& text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TEST(PipelineActionTest, TextIsReadAsItIsWritten) {
  for (const char* text :
       {"2F0", "13B7", "0I12", "3W1", "1SEND_F0", "2RECV_F0", "1SEND_B3",
        "0RECV_B3", "1WAIT_SEND_F2", "1WAIT_SEND_B2", "0UNSHARD", "0RESHARD",
        "4REDUCE_GRAD", "4WAIT_REDUCE_GRAD"}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<Action> actions, ParseActions(text));
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(ToString(actions[0]), text);
    EXPECT_EQ(actions[0].overlap, 0);
  }
}

TEST(PipelineActionTest, WhatRunsAtTheSameTimeIsSeveralActions) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Action> actions,
                       ParseActions("(0F3; 3B1)OVERLAP_F_B"));
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(ToString(actions[0]), "0F3");
  EXPECT_EQ(ToString(actions[1]), "3B1");
  EXPECT_EQ(actions[0].overlap, 2);
  EXPECT_EQ(actions[1].overlap, 0);
}

TEST(PipelineActionTest, OtherTextIsRefused) {
  for (const char* text :
       {"", "F0", "1", "1X0", "1f0", "1F0x", "-1F0", "1SEND_F 0", "1FF0",
        "OVERLAP_F_B", "1OVERLAP_F_B"}) {
    EXPECT_THAT(ParseActions(text), IsRefused("is no action")) << text;
  }
  EXPECT_THAT(ParseActions("1F"), IsRefused("'1F' has no micro-batch"));
  EXPECT_THAT(ParseActions("1UNSHARD0"), IsRefused("has a micro-batch"));
  EXPECT_THAT(ParseActions("65536F0"), IsRefused("a stage beyond 65535"));
  EXPECT_THAT(ParseActions("99999999999F0"), IsRefused("a stage beyond"));
  EXPECT_THAT(ParseActions("0F65536"), IsRefused("a micro-batch beyond"));
  EXPECT_THAT(ParseActions("(0F3;3B1)"), IsRefused("is no overlap"));
  EXPECT_THAT(ParseActions("(0F3)OVERLAP_F_B"), IsRefused("overlaps 1"));
  EXPECT_THAT(ParseActions("(0F3;1SEND_F0)OVERLAP_F_B"),
              IsRefused("overlaps 1SEND_F0"));
  const std::string many =
      absl::StrJoin(std::vector<std::string>(70, "0F0"), ";");
  EXPECT_THAT(ParseActions(absl::StrCat("(", many, ")OVERLAP_F_B")),
              IsRefused("overlaps 70"));
}

// Two ranks with a stage each, and two micro-batches.
constexpr char kTwoRanks[] =
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";

TEST(PipelineScheduleTest, CsvIsReadAsItIsWritten) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Schedule::FromCsv(kTwoRanks));
  EXPECT_EQ(schedule.ranks(), 2);
  EXPECT_EQ(schedule.stages(), 2);
  EXPECT_EQ(schedule.micro_batches(), 2);
  EXPECT_EQ(schedule.rank_of_stage(1), 1);
  EXPECT_THAT(schedule.StagesOf(1), ElementsAre(1));
  EXPECT_TRUE(schedule.has_transfers());
  EXPECT_EQ(schedule.ToCsv(), kTwoRanks);
}

TEST(PipelineScheduleTest, EmptyCellsAreLeftOut) {
  const std::string text = absl::StrReplaceAll(
      kTwoRanks, {{"1RECV_F0,", "\"\", ,1RECV_F0,,"}, {"\n", "\r\n"}});
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Schedule::FromCsv(text));
  EXPECT_EQ(schedule.ToCsv(), kTwoRanks);
}

TEST(PipelineScheduleTest, TheHashIsThatOfTheLists) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Schedule::FromCsv(kTwoRanks));
  ASSERT_OK_AND_ASSIGN(const Schedule same,
                       Schedule::FromCsv(schedule.ToCsv()));
  EXPECT_EQ(schedule, same);
  EXPECT_EQ(schedule.Hash(), same.Hash());
  ASSERT_OK_AND_ASSIGN(
      const Schedule other,
      Schedule::FromCsv(absl::StrReplaceAll(
          kTwoRanks, {{"0SEND_F1,0RECV_B0", "0RECV_B0,0SEND_F1"}})));
  EXPECT_NE(schedule, other);
  EXPECT_NE(schedule.Hash(), other.Hash());
}

TEST(PipelineScheduleTest, TheHashIsTheSameInEveryVersion) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, Schedule::FromCsv("0F0,0B0\n"));
  EXPECT_EQ(schedule.Hash(), StableHash("0F0,0B0\n"));
}

TEST(PipelineScheduleTest, ListsWithoutTransfersGetThem) {
  ASSERT_OK_AND_ASSIGN(const Schedule compute,
                       Schedule::FromCsv("0F0,0F1,0B0,0B1,0REDUCE_GRAD\n"
                                         "1F0,1I0,1W0,1F1,1B1\n"));
  EXPECT_FALSE(compute.has_transfers());
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithTransfers(compute));
  EXPECT_EQ(schedule.ToCsv(),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,"
            "0REDUCE_GRAD\n"
            "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_TRUE(schedule.has_transfers());
  ASSERT_OK_AND_ASSIGN(const Schedule again, WithTransfers(schedule));
  EXPECT_EQ(again, schedule);
}

TEST(PipelineScheduleTest, StagesOfOneRankHandOverInMemory) {
  ASSERT_OK_AND_ASSIGN(const Schedule one,
                       Schedule::FromCsv("0F0,1F0,1B0,0B0\n"));
  EXPECT_TRUE(one.has_transfers());  // there are none to have
  ASSERT_OK_AND_ASSIGN(const Schedule two,
                       Schedule::FromCsv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"));
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithTransfers(two));
  EXPECT_EQ(schedule.ToCsv(),
            "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n");
  EXPECT_THAT(schedule.StagesOf(0), ElementsAre(0, 3));
}

TEST(PipelineScheduleTest, TransfersAreAroundWhatRunsAtTheSameTime) {
  ASSERT_OK_AND_ASSIGN(
      const Schedule compute,
      Schedule::FromCsv("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"));
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithTransfers(compute));
  EXPECT_THAT(schedule.ToCsv(),
              HasSubstr("1RECV_F0,1F0,1RECV_F1,(1F1;1B0)OVERLAP_F_B,1SEND_B0,"
                        "1B1,1SEND_B1\n"));
}

struct WrongCsv {
  std::string text;
  std::string error;
};

TEST(PipelineScheduleTest, WhatIsNoScheduleIsRefused) {
  // Made of kTwoRanks.
  const auto with = [](const char* from, const char* to) {
    return absl::StrReplaceAll(kTwoRanks, {{from, to}});
  };
  const std::vector<WrongCsv> wrong = {
      {"", "rank 0 has no actions"},
      {"0F0,0B0\n\n1F0,1B0\n", "rank 1 has no actions"},
      {"0F0,0X0\n", "line 1, cell 2: '0X0' is no action"},
      {"0REDUCE_GRAD\n", "it has no micro-batches"},
      {"0F0,0B0\n2F0,2B0\n", "a stage 2 and no stage 1"},
      {"0F0,0B0\n0F1,0B1\n", "0F1 of rank 1 is of a stage on rank 0"},
      {"0F0,0B0,65535F65535\n", "no stage 1"},
      {"0F0,0B0,1F65535\n",
       "make 131072 forward passes, and there are only 3 "
       "actions"},
      {"0F0,0F0,0B0\n", "0F0 of rank 0 comes twice"},
      {"0F0,0B0,0B0\n", "0B0 of rank 0 comes twice"},
      {"0F0,0B0,0I0\n", "follows another backward pass"},
      {"0B0,0F0\n", "0B0 of rank 0 does not come after 0F0"},
      {"0F0,0W0,0I0\n", "0W0 of rank 0 does not come after 0I0"},
      {"0F0,0B0,0W0\n", "0W0 of rank 0 does not come after 0I0"},
      {"0F0,0F1,0B0\n", "rank 0 has no 0B1"},
      {"0F0,0B0,0F2,0B2\n", "rank 0 has no 0F1"},
      {"0F0,0I0\n", "rank 0 has no 0W0"},
      {"1F0,0F0,1B0,0B0\n", "1F0 of rank 0 does not come after 0F0"},
      {"0F0,1F0,0B0,1B0\n", "0B0 of rank 0 does not come after 1B0"},
      {"0F0,0SEND_F0,1F0,1B0,0B0\n", "is with stage 1 of the same rank"},
      {"0F0,0SEND_F0,0B0\n", "is with a stage that is not there"},
      {"0F0,0B0,0SEND_B0\n", "is with a stage that is not there"},
      {"0F0,0REDUCE_GRAD,0B0\n",
       "comes while backward passes of 1 micro-batches are missing"},
      {"0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", "comes twice"},
      {"0F0,0B0,0WAIT_REDUCE_GRAD\n", "does not come after 0REDUCE_GRAD"},
      {with("1RECV_F1,", ""), "1F1 of rank 1 does not come after 1RECV_F1"},
      {with("1RECV_F0,1F0", "1F0,1RECV_F0"), "does not come after 1RECV_F0"},
      {with("0RECV_B0,0B0", "0B0,0RECV_B0"), "does not come after 0RECV_B0"},
      {with("0SEND_F1,", ""),
       "1RECV_F1 of rank 1 is of what nobody sends: rank 0 has no 0SEND_F1"},
      {with(",1SEND_B1", ""),
       "0RECV_B1 of rank 0 is of what nobody sends: rank 1 has no 1SEND_B1"},
      {with("0F0,0SEND_F0", "0SEND_F0,0F0"), "does not come after 0F0"},
      {with("1B0,1SEND_B0", "1SEND_B0,1B0"), "does not come after 1B0"},
      {with("0SEND_F0", "0SEND_F0,0SEND_F0"), "0SEND_F0 of rank 0 comes twice"},
      {with("1RECV_F0", "1RECV_F0,1RECV_F0"), "comes twice"},
      {with("0SEND_F0", "0WAIT_SEND_F0,0SEND_F0"),
       "0WAIT_SEND_F0 of rank 0 does not come after 0SEND_F0"},
  };
  for (const WrongCsv& one : wrong) {
    EXPECT_THAT(Schedule::FromCsv(one.text), IsRefused(one.error)) << one.text;
  }
}

TEST(PipelineScheduleTest, SizesAreBounded) {
  std::string ranks;
  for (int i = 0; i <= kMaxRanks; ++i) {
    absl::StrAppend(&ranks, i, "F0,", i, "B0\n");
  }
  EXPECT_THAT(Schedule::FromCsv(ranks), IsRefused("more than 4096 lines"));
  std::vector<Schedule::Actions> lists(kMaxRanks + 1, {Action()});
  EXPECT_THAT(Schedule::Create(lists), IsRefused("it has 4097 ranks"));
  lists = {Schedule::Actions(kMaxActions + 1)};
  EXPECT_THAT(Schedule::Create(std::move(lists)),
              IsRefused("more than 8388608 actions"));
}

TEST(PipelineScheduleTest, ListsOfProgramsAreCheckedToo) {
  const auto create = [](Action action) {
    return Schedule::Create({{action}});
  };
  EXPECT_THAT(create({-1, 0, ActionKind::kForward}), IsRefused("cannot be"));
  EXPECT_THAT(create({0, -1, ActionKind::kForward}), IsRefused("cannot be"));
  EXPECT_THAT(create({0, 0, ActionKind::kUnshard}), IsRefused("cannot be"));
  EXPECT_THAT(create({kMaxStages, 0, ActionKind::kForward}),
              IsRefused("cannot be"));
  EXPECT_THAT(create({0, 0, ActionKind::kForward, 2}),
              IsRefused("begins an overlap"));
}

}  // namespace
}  // namespace coxswain::pipeline
