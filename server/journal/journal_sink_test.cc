#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/journal/journal.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(JournalSinkTest, LinesOfJobsBecomeEvents) {
  FakeClock clock;
  Journal journal;
  const JournalSink sink(&journal, &clock);
  LogWarning("member_lost", {{"job", "mnist"},
                             {"generation", 4},
                             {"rank", 1},
                             {"step", int64_t{1} << 40},
                             {"reason", "exit code 7"}});
  LogInfo("coordinator_started", {{"port", 7077}});
  const std::vector<JournalEvent> events = journal.Read("", 0, 9);
  ASSERT_EQ(events.size(), 1);
  const JournalEvent& event = events[0];
  EXPECT_EQ(event.time, clock.WallTime());
  EXPECT_EQ(event.level, "warning");
  EXPECT_EQ(event.event, "member_lost");
  EXPECT_EQ(event.job, "mnist");
  EXPECT_EQ(event.generation, 4);
  EXPECT_EQ(event.rank, 1);
  EXPECT_EQ(event.step, int64_t{1} << 40);
  EXPECT_THAT(event.fields, ElementsAre(Pair("reason", "exit code 7")));
}

TEST(JournalSinkTest, WhatIsNoNumberIsAFieldAsAnyOther) {
  FakeClock clock;
  Journal journal;
  const JournalSink sink(&journal, &clock);
  LogInfo("odd", {{"rank", "none"}, {"job", "j"}});
  const JournalEvent event = journal.Read("j", 0, 1).at(0);
  EXPECT_EQ(event.rank, -1);
  EXPECT_EQ(event.step, -1);
  EXPECT_THAT(event.fields, ElementsAre(Pair("rank", "none")));
}

TEST(JournalSinkTest, NothingIsNotedOnceItIsDestroyed) {
  FakeClock clock;
  Journal journal;
  { const JournalSink sink(&journal, &clock); }
  LogInfo("late", {{"job", "j"}});
  EXPECT_THAT(journal.Read("", 0, 1), IsEmpty());
}

}  // namespace
}  // namespace coxswain::server
