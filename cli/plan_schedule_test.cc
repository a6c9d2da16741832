#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "cli/commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::plan_schedule_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

PlanScheduleOptions OptionsOf(const std::string& pipeline, int ranks,
                              int accumulation) {
  PlanScheduleOptions options;
  options.pipeline = pipeline;
  options.ranks = ranks;
  options.accumulation = accumulation;
  return options;
}

PlanCheckOptions FileOptions(const std::string& file) {
  PlanCheckOptions options;
  options.file = file;
  return options;
}

std::string TestData(const std::string& name) {
  return absl::StrCat("schedule/pipeline/testdata/torch_2.15.0_", name, ".csv");
}

std::string Written(const std::string& text) {
  std::string path = testing::TempDir() + "/schedule.csv";
  std::ofstream(path) << text;
  return path;
}

TEST(PlanScheduleTest, TheSchedulesPictureIsThis) {
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       DescribeSchedule(OptionsOf("1f1b", 4, 8)));
  EXPECT_EQ(
      text,
      "1f1b: 4 ranks, 4 stages, 8 micro-batches\n"
      "\n"
      "time    0              5              10             15             20  "
      "           25             30\n"
      "rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B0--- F4 B1--- F5 B2--- F6 B3--- "
      "F7 B4--- .  B5--- .  B6--- .  B7---\n"
      "rank 1  .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- F5 B3--- F6 "
      "B4--- F7 B5--- .  B6--- .  B7--- .  .\n"
      "rank 2  .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- F6 "
      "B5--- F7 B6--- .  B7--- .  .  .  .\n"
      "rank 3  .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- "
      "F6 B6--- F7 B7--- .  .  .  .  .  .\n"
      "\n"
      "  RANK  STAGES  BUBBLE  ACTIVATIONS\n"
      "  0     0       27.3 %  4\n"
      "  1     1       27.3 %  3\n"
      "  2     2       27.3 %  2\n"
      "  3     3       27.3 %  1\n"
      "\n"
      "makespan     33, where a forward pass through a stage takes 1, a "
      "backward "
      "pass 2\n"
      "bubble       27.3 %\n"
      "activations  of at most 4 passes on one rank\n"
      "channels     each must hold 1 message; at these times none has more "
      "than "
      "1\n"
      "hash         40b6d0b3940ffb57\n");
}

TEST(PlanScheduleTest, ThePageShowsWhatIsPrinted) {
  std::ostringstream page;
  page << std::ifstream("docs/parallelism.md").rdbuf();
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       DescribeSchedule(OptionsOf("1f1b", 4, 4)));
  EXPECT_THAT(page.str(), HasSubstr("\n```\n" + text + "```\n"));
  PlanScheduleOptions options = OptionsOf("1f1b", 4, 8);
  options.capacity = 0;
  EXPECT_THAT(page.str(),
              HasSubstr(absl::StrCat(
                  "\n```\ncoxswain: ",
                  DescribeSchedule(options).status().message(), "\n```\n")));
}

TEST(PlanScheduleTest, ChannelsOfACapacityAreTaken) {
  PlanScheduleOptions options = OptionsOf("interleaved(chunks=2)", 2, 5);
  EXPECT_THAT(DescribeSchedule(options).value(),
              HasSubstr("each must hold 2 messages; "));
  options.capacity = 1;
  EXPECT_THAT(DescribeSchedule(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(StartsWith("interleaved(chunks=2): it cannot run "
                                        "where a channel holds 1 message"),
                             HasSubstr("\n  rank 0 waits at 2SEND_B2"))));
  options = OptionsOf("gpipe", 3, 4);
  options.capacity = 0;
  EXPECT_THAT(DescribeSchedule(options).value(),
              HasSubstr("need not hold messages; at these times none has more "
                        "than 1\n"));
}

TEST(PlanScheduleTest, WhatIsLargeIsNotDrawn) {
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       DescribeSchedule(OptionsOf("1f1b", 65, 1)));
  EXPECT_THAT(text, StartsWith("1f1b: 65 ranks, 65 stages, 1 micro-batch\n\n"
                               "makespan     195,"));
  ASSERT_OK_AND_ASSIGN(const std::string longer,
                       DescribeSchedule(OptionsOf("1f1b", 1, 200)));
  EXPECT_THAT(longer, AllOf(HasSubstr("\n\n  RANK  STAGES"),
                            HasSubstr("there are no messages\n"),
                            Not(HasSubstr("rank 0"))));
  EXPECT_THAT(DescribeSchedule(OptionsOf("1f1b", 4096, 60000)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("at most 8388608")));
}

TEST(PlanScheduleTest, ManyStagesOfARankAreCut) {
  EXPECT_THAT(
      DescribeSchedule(OptionsOf("interleaved(chunks=6)", 1, 1)).value(),
      HasSubstr("  0     0,1,2,3,...  0.0 %   6\n"));
}

TEST(PlanScheduleTest, ItsCsvIsChecked) {
  PlanScheduleOptions options = OptionsOf("zb_h1", 3, 4);
  ASSERT_OK_AND_ASSIGN(const std::string drawn, DescribeSchedule(options));
  options.csv = true;
  ASSERT_OK_AND_ASSIGN(const std::string csv, DescribeSchedule(options));
  EXPECT_THAT(csv, StartsWith("0F0,0F1,0F2,0I0,0W0,0F3,"));
  const std::string path = Written(csv);
  ASSERT_OK_AND_ASSIGN(const std::string checked,
                       CheckSchedule(FileOptions(path)));
  EXPECT_EQ(checked.substr(checked.find("\n\n")),
            drawn.substr(drawn.find("\n\n")));
  EXPECT_THAT(checked,
              StartsWith(path + ": 3 ranks, 3 stages, 4 micro-batches; sends "
                                "and receives have been added\n"));
}

TEST(PlanCheckTest, WhatTorchWritesIsUnderstood) {
  ASSERT_OK_AND_ASSIGN(
      std::string text,
      CheckSchedule(FileOptions(TestData("interleaved_1f1b_comms"))));
  EXPECT_THAT(text, AllOf(StartsWith(TestData("interleaved_1f1b_comms") +
                                     ": 2 ranks, 4 stages, 4 micro-batches\n"),
                          HasSubstr("\n  0     0,2     11.1 %  5\n"),
                          HasSubstr("channels     need not hold messages;")));
  ASSERT_OK_AND_ASSIGN(text, CheckSchedule(FileOptions(TestData("zbv_comms"))));
  EXPECT_THAT(text, HasSubstr("\n  0     0,3     4.0 %   4\n"));
}

TEST(PlanCheckTest, WhatCannotRunIsNamed) {
  PlanCheckOptions options =
      FileOptions(Written("0F0,2F0,2B0,0B0,0F1,2F1,2B1,0B1\n"
                          "1F0,1F1,1B0,1B1,3F0,3F1,3B0,3B1\n"));
  EXPECT_THAT(CheckSchedule(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(StartsWith(options.file),
                             HasSubstr("2 ranks wait for each other\n"
                                       "  rank 0 waits at 2RECV_B0"))));
  options.file = Written("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_OK(CheckSchedule(options));
  options.file = Written("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  options.capacity = 0;
  EXPECT_THAT(CheckSchedule(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("where a channel holds no messages")));
}

TEST(PlanCheckTest, WhatIsNoScheduleIsRefused) {
  EXPECT_THAT(CheckSchedule(FileOptions(Written("0F0,0B0\n1F0\n"))),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("schedule.csv: rank 1 has no 1B0")));
  EXPECT_THAT(CheckSchedule(FileOptions(testing::TempDir())),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("directory")));
  EXPECT_THAT(CheckSchedule(FileOptions("absent.csv")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("cannot read absent.csv: No such file")));
}

}  // namespace
}  // namespace coxswain::plan_schedule_test
