#include "schedule/pipeline/timing.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/picture.h"

namespace coxswain::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Schedule> TimedSchedule(const std::string& spec, int ranks,
                                       int micro_batches) {
  const auto parsed = ScheduleSpec::Parse(spec);
  if (!parsed.ok()) return parsed.status();
  const auto compute = Generate(*parsed, ranks, micro_batches);
  return compute.ok() ? WithTransfers(*compute) : compute.status();
}

TEST(TimingTest, CostsAreThoseOfTheStages) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimedSchedule("gpipe", 2, 2));
  TimingOptions options;
  options.stages = {{1, 1, 2}, {10, 20, 30}};
  ASSERT_OK_AND_ASSIGN(const Timing timing, Time(schedule, options));
  // F0 at 1, then twice 10 and twice 50 of stage 1, and the last 3 of stage 0.
  EXPECT_EQ(timing.makespan, 1 + 2 * 10 + 2 * 50 + 3);
  EXPECT_THAT(timing.busy, ElementsAre(2 * (1 + 3), 2 * (10 + 50)));
  EXPECT_DOUBLE_EQ(timing.Bubble(0), 1 - 8.0 / 124);
  EXPECT_DOUBLE_EQ(timing.Bubble(1), 1 - 120.0 / 124);
  EXPECT_DOUBLE_EQ(timing.Bubble(), 1 - 128.0 / 248);
}

TEST(TimingTest, HalvesOfABackwardPassTakeTheirOwnTime) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimedSchedule("zb_h1", 2, 1));
  TimingOptions options;
  options.stages = {{1, 10, 100}, {1, 10, 100}};
  ASSERT_OK_AND_ASSIGN(const Timing timing, Time(schedule, options));
  // The gradients go back before the last stage's weights are done.
  EXPECT_EQ(timing.makespan, 1 + 1 + 10 + 10 + 100);
}

TEST(TimingTest, TransfersTakeTimeOnTheWay) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimedSchedule("1f1b", 3, 1));
  TimingOptions options;
  options.transfer = 5;
  ASSERT_OK_AND_ASSIGN(Timing timing, Time(schedule, options));
  EXPECT_EQ(timing.makespan, 3 * 3 + 4 * 5);
  options.capacity = 0;
  ASSERT_OK_AND_ASSIGN(timing, Time(schedule, options));
  EXPECT_EQ(timing.makespan, 3 * 3 + 4 * 5);
}

TEST(TimingTest, SendersWaitForASlot) {
  // The last stage is slow, so the first one is as far ahead as it can be.
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimedSchedule("gpipe", 2, 4));
  TimingOptions options;
  options.stages = {{1, 0, 0}, {10, 0, 0}};
  const auto sends = [&](int capacity) {
    options.capacity = capacity;
    const auto timing = Time(schedule, options);
    std::vector<double> ends;
    for (size_t at = 0; timing.ok() && at < timing->of_rank[0].size(); ++at) {
      if (IsSend(schedule.of_rank()[0][at].kind)) {
        ends.push_back(timing->of_rank[0][at].end);
      }
    }
    return ends;
  };
  EXPECT_THAT(sends(4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(sends(2), ElementsAre(1, 2, 3, 11));
  EXPECT_THAT(sends(1), ElementsAre(1, 2, 11, 21));
  // Together with the receives, which follow each pass of 10.
  EXPECT_THAT(sends(0), ElementsAre(1, 11, 21, 31));
}

TEST(TimingTest, MessagesThatWaitAreCounted) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimedSchedule("gpipe", 2, 4));
  TimingOptions options;
  options.stages = {{1, 0, 0}, {10, 0, 0}};
  options.capacity = 4;
  ASSERT_OK_AND_ASSIGN(Timing timing, Time(schedule, options));
  EXPECT_EQ(timing.peak_messages, 3);  // one is with the second rank
  options.capacity = 2;
  ASSERT_OK_AND_ASSIGN(timing, Time(schedule, options));
  EXPECT_EQ(timing.peak_messages, 2);
}

TEST(TimingTest, AReceiveMayBeginEarly) {
  // Rank 0 begins to receive the gradients before its second forward pass.
  ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      Schedule::FromCsv("0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n"
                        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"
                        "\n"));
  ASSERT_OK_AND_ASSIGN(const Timing timing, Time(schedule, TimingOptions()));
  EXPECT_EQ(timing.of_rank[0][2].begin, 1);
  EXPECT_EQ(timing.of_rank[0][2].end, 4);
  EXPECT_EQ(timing.of_rank[0][3].begin, 1);  // 0F1
  EXPECT_EQ(timing.of_rank[0][5].begin, 4);  // 0B0
}

TEST(TimingTest, AWaitForASendLastsUntilItsReceive) {
  ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      Schedule::FromCsv("0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1,0RECV_B0,0B0,"
                        "0RECV_B1,0B1\n"
                        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"
                        "\n"));
  ASSERT_OK_AND_ASSIGN(const Timing timing, Time(schedule, TimingOptions()));
  EXPECT_EQ(timing.of_rank[0][4].begin, 2);
  EXPECT_EQ(timing.of_rank[0][4].end, 4);
}

TEST(TimingTest, WhatCannotRunHasNoTime) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimedSchedule("1f1b", 2, 4));
  TimingOptions options;
  options.capacity = 0;
  EXPECT_THAT(Time(schedule, options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("wait for each other")));
}

TEST(TimingTest, WrongCostsAreRefused) {
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimedSchedule("1f1b", 2, 2));
  const auto refused = [](const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  TimingOptions options;
  options.stages.resize(3);
  EXPECT_THAT(Time(schedule, options), refused("costs of 3 stages"));
  options.stages = {{1, 1, 1}, {1, -1, 1}};
  EXPECT_THAT(Time(schedule, options), refused("negative"));
  options.stages.clear();
  options.transfer = -1;
  EXPECT_THAT(Time(schedule, options), refused("negative"));
}

std::string PictureOf(const std::string& spec, int ranks, int micro_batches,
                      int width) {
  const auto schedule = TimedSchedule(spec, ranks, micro_batches);
  if (!schedule.ok()) return schedule.status().ToString();
  const auto timing = Time(*schedule, TimingOptions());
  return timing.ok() ? DrawPicture(*schedule, *timing, width)
                     : timing.status().ToString();
}

TEST(PictureTest, PassesAreDrawnOverTime) {
  EXPECT_EQ(PictureOf("1f1b", 4, 4, 120),
            "time    0              5              10             15           "
            "  20\n"
            "rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B0--- .  B1--- .  B2--- .  "
            "B3---\n"
            "rank 1  .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- .  B2--- .  B3--- "
            ".  .\n"
            "rank 2  .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- .  B3--- .  .  "
            ".  .\n"
            "rank 3  .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- .  .  .  .  "
            ".  .\n");
}

TEST(PictureTest, LinesAreCutAndStagesNamedWhereARankHasSeveral) {
  EXPECT_EQ(PictureOf("interleaved", 2, 2, 68),
            "time    0                   5                   10\n"
            "rank 0  0F0 0F1 2F0 2F1 .   .   2B0---- .   2B1---- 0B0---- "
            "0B1----\n"
            "rank 1  .   1F0 1F1 3F0 3B0---- 3F1 3B1---- 1B0---- 1B1---- "
            ".   .\n");
  EXPECT_EQ(PictureOf("interleaved", 2, 2, 67),
            "time    0                   5\n"
            "rank 0  0F0 0F1 2F0 2F1 .   .   2B0---- .   2B1-\n"
            "rank 1  .   1F0 1F1 3F0 3B0---- 3F1 3B1---- 1B0-\n"
            "\n"
            "time    10\n"
            "rank 0  --- 0B0---- 0B1----\n"
            "rank 1  --- 1B1---- .   .\n");
}

TEST(PictureTest, ANarrowPictureHasAUnitInALine) {
  EXPECT_EQ(PictureOf("gpipe", 1, 1, 1),
            "time    0\nrank 0  F0\n\ntime\nrank 0  B0-\n\ntime\nrank 0  --\n");
}

}  // namespace
}  // namespace coxswain::pipeline
