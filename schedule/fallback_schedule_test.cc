#include "schedule/fallback_schedule.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::schedule::fallback_schedule_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = Message::Kind;

constexpr char kTrain[] = "train";
const absl::Time kNow = absl::UnixEpoch();

class FallbackScheduleTest : public testing::Test {
 protected:
  FallbackScheduleTest() {
    plan_.version = 1;
    plan_.hook = "allreduce";
  }
  Ticket TicketOf(int64_t round, int64_t plan_version = 1) const {
    Ticket ticket;
    ticket.round = ticket.step = round;
    ticket.micro_batches = ticket.window = 1;
    ticket.weight = 1;
    ticket.plan_version = plan_version;
    ticket.hook = "allreduce";
    return ticket;
  }
  FallbackSchedule::Messages Announce(int rank, int64_t round) {
    return schedule_.OnTicket(rank, kTrain, TicketOf(round), kNow);
  }
  FallbackSchedule::Messages SendPosition(int rank, int64_t round) {
    Decision last;
    last.round = round;
    return schedule_.OnPosition(rank, kTrain, last, kNow);
  }
  void AttachAll() {
    for (int rank = 0; rank < 3; ++rank) schedule_.OnAttached(rank);
  }

  Plan plan_;
  FallbackSchedule schedule_{
      {3, [this]() { return plan_; }, 2, kMaxStreamBytes, Mesh()}};
};

TEST_F(FallbackScheduleTest, ItDecidesOnceAllHaveAttached) {
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(schedule_.OnAttached(rank).epoch.fallback, 1);
    SendPosition(rank, 4);
    EXPECT_THAT(Announce(rank, 5), IsEmpty());
  }
  EXPECT_THAT(Announce(2, 5), IsEmpty()) << "it is still elsewhere";
  EXPECT_EQ(schedule_.OnAttached(2).epoch.fallback, 1);
  const auto sent = Announce(2, 5);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].kind, Kind::kDecision);
  EXPECT_EQ(sent[0].rank, Message::kAllRanks);
  EXPECT_EQ(sent[0].round, 5);
  EXPECT_EQ(sent[0].stream, kTrain);
  EXPECT_EQ(sent[0].epoch, (Epoch{1, 0}));
  // Repeated, because the answer was lost.
  const auto again = Announce(1, 5);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].rank, 1);
}

TEST_F(FallbackScheduleTest, WhatOneHasReceivedIsSentToTheOthers) {
  AttachAll();
  EXPECT_THAT(Announce(1, 5), IsEmpty());
  const auto sent = SendPosition(0, 5);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].rank, 1);
  EXPECT_EQ(sent[0].round, 5);
}

TEST_F(FallbackScheduleTest, ATicketOfOneThatHasDetachedCountsNoMore) {
  AttachAll();
  Announce(1, 0);
  schedule_.OnDetached(1);
  Announce(0, 0);
  EXPECT_THAT(Announce(2, 0), IsEmpty());
  // The next epoch begins with nothing, and without the others.
  const auto attached = schedule_.OnAttached(1);
  EXPECT_EQ(attached.epoch.fallback, 2);
  EXPECT_THAT(attached.detached, ElementsAre(0, 2));
  EXPECT_FALSE(schedule_.attached(0));
  Announce(1, 0);
  EXPECT_EQ(schedule_.OnAttached(0).epoch.fallback, 2);
  EXPECT_EQ(schedule_.OnAttached(2).epoch.fallback, 2);
  Announce(0, 0);
  EXPECT_THAT(Announce(2, 0), SizeIs(1));
}

TEST_F(FallbackScheduleTest, WhoAttachesTwiceHasDetachedBetween) {
  AttachAll();
  Announce(1, 0);
  EXPECT_EQ(schedule_.OnAttached(1).epoch.fallback, 2);
  EXPECT_FALSE(schedule_.attached(0));
}

TEST_F(FallbackScheduleTest, ItIsSuspendedWhereTicketsDiffer) {
  AttachAll();
  Announce(0, 0);
  Announce(1, 0);
  Ticket other = TicketOf(0);
  other.layout = 7;
  EXPECT_THAT(schedule_.OnTicket(2, kTrain, other, kNow), IsEmpty());
  EXPECT_THAT(schedule_.suspended(), HasSubstr("layout"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(Announce(rank, 0), IsEmpty());
  }
}

TEST_F(FallbackScheduleTest, ItIsSuspendedByADrain) {
  AttachAll();
  Ticket ticket = TicketOf(0);
  ticket.drain = "SIGTERM";
  schedule_.OnTicket(0, kTrain, ticket, kNow);
  Announce(1, 0);
  EXPECT_THAT(Announce(2, 0), IsEmpty());
  EXPECT_THAT(schedule_.suspended(), HasSubstr("rank 0 drains"));
}

TEST_F(FallbackScheduleTest, RanksOfAMeshAreNamedWithTheirCoordinates) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse("dp=2,shard=2"));
  FallbackSchedule meshed(
      {4, [this]() { return plan_; }, 2, kMaxStreamBytes, mesh});
  for (int rank = 0; rank < 4; ++rank) meshed.OnAttached(rank);
  Ticket ticket = TicketOf(0);
  ticket.drain = "SIGTERM";
  meshed.OnTicket(3, kTrain, ticket, kNow);
  EXPECT_EQ(meshed.suspended(), "rank 3 (dp 1, shard 1) drains");

  FallbackSchedule other(
      {4, [this]() { return plan_; }, 2, kMaxStreamBytes, mesh});
  for (int rank = 0; rank < 4; ++rank) other.OnAttached(rank);
  for (int rank = 0; rank < 4; ++rank) {
    Ticket differs = TicketOf(0);
    if (rank == 2) differs.layout = 7;
    other.OnTicket(rank, kTrain, differs, kNow);
  }
  EXPECT_THAT(other.suspended(), HasSubstr("rank 2 is dp 1, shard 0"));
}

TEST_F(FallbackScheduleTest, ItIsSuspendedByAStreamWithALongName) {
  AttachAll();
  const std::string name(65, 'x');
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(schedule_.OnTicket(rank, name, TicketOf(0), kNow), IsEmpty());
  }
  EXPECT_THAT(schedule_.suspended(), HasSubstr("65 bytes, more than 64"));
}

TEST_F(FallbackScheduleTest, ItIsSuspendedByAPlanThatItDoesNotKnow) {
  AttachAll();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(schedule_.OnTicket(rank, kTrain, TicketOf(0, 2), kNow),
                IsEmpty());
  }
  EXPECT_THAT(schedule_.suspended(), HasSubstr("plan"));
}

// Its terms may be others, so the newest plan must not measure it.
TEST_F(FallbackScheduleTest, ItIsSuspendedByAStreamThatFollowsAnOlderPlan) {
  plan_.version = 2;
  AttachAll();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(schedule_.OnTicket(rank, "average", TicketOf(0, 1), kNow),
                IsEmpty());
  }
  EXPECT_THAT(schedule_.suspended(), HasSubstr("follows plan 1, and not 2"));
}

TEST_F(FallbackScheduleTest, APlanThatOneRankHasReceivedIsTakenFromIt) {
  AttachAll();
  Announce(0, 3);
  Decision last;
  last.round = 3;
  last.plan = plan_;
  last.plan->version = 2;
  const auto sent = schedule_.OnPosition(1, kTrain, last, kNow);
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].rank, 0);
  EXPECT_EQ(sent[0].decision.plan->version, 2);
  for (int rank = 0; rank < 2; ++rank) {
    schedule_.OnTicket(rank, kTrain, TicketOf(4, 2), kNow);
  }
  Announce(2, 3);
  EXPECT_THAT(schedule_.OnTicket(2, kTrain, TicketOf(4, 2), kNow), SizeIs(1));
}

TEST_F(FallbackScheduleTest, StreamsAreBounded) {
  AttachAll();
  schedule_.OnTicket(0, "a", TicketOf(0), kNow);
  schedule_.OnTicket(0, "b", TicketOf(0), kNow);
  EXPECT_THAT(schedule_.suspended(), IsEmpty());
  schedule_.OnTicket(0, "c", TicketOf(0), kNow);
  EXPECT_THAT(schedule_.suspended(), HasSubstr("2 streams"));
}

}  // namespace
}  // namespace coxswain::schedule::fallback_schedule_test
