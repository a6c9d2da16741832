#include "schedule/pipeline/schedules_of_job.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/generate.h"

namespace coxswain::pipeline::schedules_of_job_test {
namespace {

using testing::IsNull;
using testing::NotNull;

constexpr const char* kSpecs[] = {"gpipe",
                                  "gpipe(order=fifo)",
                                  "1f1b",
                                  "interleaved(chunks=2)",
                                  "interleaved(chunks=3)",
                                  "zb_h1"};

TEST(SchedulesOfJobTest, ActionsAreCountedAsTheyAreMade) {
  for (const char* const spec : kSpecs) {
    for (int ranks = 1; ranks < 5; ++ranks) {
      for (int micro_batches = 1; micro_batches < 9; ++micro_batches) {
        const Schedule made = *MakeSchedule(spec, ranks, micro_batches);
        int64_t actions = 0;
        for (const auto& list : made.of_rank()) {
          actions += static_cast<int64_t>(list.size());
        }
        EXPECT_EQ(CountActions(spec, ranks, micro_batches), actions)
            << spec << " " << ranks << " " << micro_batches;
      }
    }
  }
  EXPECT_EQ(CountActions("none", 2, 2), 0);
}

// What the index has, found in the lists themselves.
TEST(SchedulesOfJobTest, TheIndexHasTheOtherEndsOfTransfers) {
  for (const char* const spec : kSpecs) {
    const IndexedSchedule index(*MakeSchedule(spec, 3, 5));
    const auto& lists = index.schedule().of_rank();
    for (int list = 0; list < 3; ++list) {
      std::map<int, int> past;
      std::map<int, int> sends;  // by channel
      const auto& own = index.List(list);
      for (int at = 0; at <= static_cast<int>(own.size()); ++at) {
        const auto sent = index.SentTo(list, at);
        EXPECT_EQ((std::map<int, int>(sent.begin(), sent.end())), past);
        if (at == static_cast<int>(own.size())) break;
        const Action& action = own[static_cast<size_t>(at)];
        if (!IsTransfer(action.kind)) continue;
        const int other = index.OtherEnd(action);
        const auto& others = lists[static_cast<size_t>(other)];
        if (IsReceive(action.kind)) {
          const Action& send =
              others[static_cast<size_t>(index.PartnerOf(list, at))];
          EXPECT_TRUE(IsSend(send.kind));
          EXPECT_EQ(ChannelOf(send), ChannelOf(action));
          EXPECT_EQ(send.micro_batch, action.micro_batch);
          past[other] = std::max(past[other], index.PartnerOf(list, at) + 1);
          continue;
        }
        const int channel = ChannelOf(action);
        const int before = index.ReceiveBefore(list, at, 1);
        EXPECT_EQ(before < 0, sends[channel] == 0);
        if (before >= 0) {
          EXPECT_EQ(std::count_if(others.begin(), others.begin() + before,
                                  [&](const Action& one) {
                                    return IsReceive(one.kind) &&
                                           ChannelOf(one) == channel;
                                  }),
                    sends[channel] - 1);
        }
        ++sends[channel];
      }
    }
  }
}

TEST(SchedulesOfJobTest, WhatIsTooLargeIsNotMade) {
  SchedulesOfJob schedules("1f1b", 2, 1 << 16);
  schedules.Begin();
  EXPECT_THAT(schedules.OfWindow(), IsNull());
  EXPECT_THAT(schedules.Of((1 << 14) + 1), IsNull());
  EXPECT_THAT(schedules.Of(1 << 10), NotNull());
  SchedulesOfJob small("1f1b", 2, 100, /*most_actions=*/80);
  small.Begin();
  EXPECT_THAT(small.OfWindow(), IsNull());
  EXPECT_THAT(small.Of(10), NotNull());
  EXPECT_THAT(small.Of(11), IsNull());
  EXPECT_THAT(small.Of(-1), IsNull());
}

// Ranks may report any number: that of the plan is there all the same, and a
// new one for each explanation makes no new schedules without end.
TEST(SchedulesOfJobTest, TheNumbersOfRanksMakeFewSchedules) {
  SchedulesOfJob schedules("1f1b", 2, 100);
  int made = 0;
  for (int number = 1; number < 90; number += 3) {
    schedules.Begin();
    for (int one = number; one < number + 3; ++one) {
      if (schedules.Of(one) != nullptr) ++made;
    }
    EXPECT_THAT(schedules.OfWindow(), NotNull());
    EXPECT_THAT(schedules.Of(101), IsNull()) << "the plan has fewer";
  }
  EXPECT_LE(made, SchedulesOfJob::kMaxMade * 30);
  // Those that are asked for again and again stay.
  SchedulesOfJob steady("1f1b", 2, 100);
  for (const int number : {5, 6}) {
    steady.Begin();
    EXPECT_THAT(steady.Of(number), NotNull());
  }
  for (int explanation = 0; explanation < 3; ++explanation) {
    for (const int number : {5, 6}) {
      EXPECT_THAT(steady.Of(number), NotNull());
      EXPECT_EQ(steady.Of(number)->schedule().micro_batches(), number);
    }
    steady.Begin();
  }
}

TEST(SchedulesOfJobTest, APlaceOfThePlanBeforeIsReadByItsSchedule) {
  const uint64_t before = MakeSchedule("1f1b", 2, 4)->Hash();
  const uint64_t after = MakeSchedule("zb_h1", 2, 4)->Hash();
  SchedulesOfJob schedules("1f1b", 2, 4);
  schedules.Begin();
  EXPECT_EQ(schedules.Of(4, before)->hash(), before);
  EXPECT_THAT(schedules.Of(4, after), IsNull());
  schedules.Use("zb_h1", 4);
  schedules.Begin();
  EXPECT_EQ(schedules.Of(4, before)->hash(), before);
  EXPECT_EQ(schedules.Of(4, after)->hash(), after);
  EXPECT_EQ(schedules.Of(4)->hash(), after);
  EXPECT_THAT(schedules.Of(4, 77), IsNull());
}

}  // namespace
}  // namespace coxswain::pipeline::schedules_of_job_test
