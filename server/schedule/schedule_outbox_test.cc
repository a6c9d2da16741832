#include "server/schedule/schedule_outbox.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::server::schedule_outbox_test {
namespace {

using schedule::Epoch;
using schedule::Message;
using testing::SizeIs;

Message MessageOf(int rank, int64_t round,
                  const std::string& stream = "train") {
  Message message;
  message.kind = Message::Kind::kDecision;
  message.rank = rank;
  message.round = round;
  message.stream = stream;
  return message;
}

JobSchedule::Effects EffectsOf(Message message) {
  JobSchedule::Effects effects;
  effects.messages.push_back(std::move(message));
  return effects;
}

TEST(ScheduleOutboxTest, WhatIsForAllStaysInOrderAndHasItsEpoch) {
  ScheduleOutbox outbox;
  EXPECT_TRUE(outbox.empty());
  outbox.Add({}, {0, 1});
  EXPECT_TRUE(outbox.empty()) << "nothing is to be done";
  for (int64_t round = 0; round < 3; ++round) {
    outbox.Add(EffectsOf(MessageOf(Message::kAllRanks, round)), {round, 1});
  }
  for (int64_t round = 0; round < 3; ++round) {
    ASSERT_FALSE(outbox.empty());
    const JobSchedule::Effects next = outbox.Take();
    ASSERT_THAT(next.messages, SizeIs(1));
    EXPECT_EQ(next.messages[0].round, round);
    EXPECT_EQ(next.messages[0].epoch, (Epoch{round, 1}));
  }
  EXPECT_TRUE(outbox.empty());
}

TEST(ScheduleOutboxTest, AnAnswerTakesThePlaceOfTheOneBefore) {
  ScheduleOutbox outbox;
  for (int64_t round = 0; round < 1000; ++round) {
    outbox.Add(EffectsOf(MessageOf(1, round)), {0, 1});
    outbox.Add(EffectsOf(MessageOf(1, round, "eval")), {0, 1});
    outbox.Add(EffectsOf(MessageOf(2, round)), {0, 1});
  }
  outbox.Add(EffectsOf(MessageOf(Message::kAllRanks, 1000)), {0, 1});
  const JobSchedule::Effects next = outbox.Take();
  ASSERT_THAT(next.messages, SizeIs(4));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(next.messages[i].round, 999);
  EXPECT_EQ(next.messages[3].rank, Message::kAllRanks) << "answers come first";
  EXPECT_TRUE(outbox.empty());
}

TEST(ScheduleOutboxTest, APlanInForceIsNotDroppedWithTheDecisions) {
  ScheduleOutbox outbox;
  JobSchedule::Effects effects = EffectsOf(MessageOf(Message::kAllRanks, 0));
  effects.positions.push_back({"train", {}});
  effects.plan.emplace().version = 7;
  effects.failure = absl::AbortedError("tickets differ");
  outbox.Add(std::move(effects), {0, 1});
  outbox.Add(EffectsOf(MessageOf(1, 0)), {0, 1});
  outbox.DropDecisions();
  const JobSchedule::Effects next = outbox.Take();
  EXPECT_EQ(next.plan->version, 7);
  EXPECT_THAT(next.messages, SizeIs(0));
  EXPECT_THAT(next.positions, SizeIs(0));
  EXPECT_TRUE(next.failure.ok());
  EXPECT_TRUE(outbox.empty());
}

}  // namespace
}  // namespace coxswain::server::schedule_outbox_test
