#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/step_agreement.h"

namespace coxswain::schedule {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = StepAgreement::Message::Kind;
using Messages = StepAgreement::Messages;

constexpr int kWorld = 3;
constexpr absl::Duration kTimeout = absl::Seconds(5);

Plan PlanOf(int64_t version) {
  Plan plan;
  plan.version = version;
  plan.hook = version == 1 ? "allreduce" : "bf16";
  plan.terms.progress_timeout = kTimeout;
  return plan;
}

Decision Received(int64_t round) {
  Decision decision;
  decision.round = round;
  return decision;
}

// An agreement that was resumed: no rank has attached again, nothing was kept.
class ResumedAgreementTest : public testing::Test {
 protected:
  ResumedAgreementTest() {
    options_.stream = "train";
    options_.world_size = kWorld;
    options_.plan = PlanOf(1);
    options_.resumed = true;
    options_.absent = {0, 1, 2};
    options_.next_plan = [this](int64_t step) {
      asked_.push_back(step);
      return std::exchange(next_, std::nullopt);
    };
  }
  StepAgreement& agreement() {
    if (!agreement_.has_value()) agreement_.emplace(options_);
    return *agreement_;
  }
  Messages Announce(int rank, int64_t round, int64_t plan_version = 1) {
    return agreement().OnTicket(rank, TicketOf(round, plan_version), now_);
  }
  Ticket TicketOf(int64_t round, int64_t plan_version = 1) {
    Ticket ticket;
    ticket.round = round;
    ticket.step = round + 100;
    ticket.window = ticket.micro_batches = 1;
    ticket.weight = 1;
    ticket.plan_version = plan_version;
    ticket.hook = PlanOf(plan_version).hook;
    return ticket;
  }
  Messages Position(int rank, const Decision& last) {
    return agreement().OnPosition(rank, last, now_);
  }
  // Returns the messages that are sent, without what was learned.
  static Messages Sent(Messages messages) {
    Messages sent;
    for (auto& message : messages) {
      if (message.kind != Kind::kLearned) sent.push_back(std::move(message));
    }
    return sent;
  }

  StepAgreement::Options options_;
  std::optional<Plan> next_;
  std::vector<int64_t> asked_;
  absl::Time now_ = absl::UnixEpoch();
  std::optional<StepAgreement> agreement_;
};

TEST_F(ResumedAgreementTest, GoesOnWhereTheRanksAre) {
  for (int rank = 0; rank < kWorld; ++rank) {
    EXPECT_THAT(Sent(Position(rank, Received(41))), IsEmpty());
  }
  EXPECT_EQ(agreement().round(), 42);
  EXPECT_THAT(Announce(0, 42), IsEmpty());
  EXPECT_THAT(Announce(1, 42), IsEmpty());
  const Messages messages = Announce(2, 42);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].kind, Kind::kDecision);
  EXPECT_EQ(messages[0].round, 42);
  EXPECT_EQ(messages[0].decision.step, 142);
}

TEST_F(ResumedAgreementTest, OneThatIsBehindReceivesWhatAnotherHas) {
  Decision reported = Received(41);
  reported.commit = false;
  reported.stop = "rank 2: a signal";
  EXPECT_THAT(Sent(Position(0, Received(40))), IsEmpty());
  EXPECT_THAT(Announce(0, 41), IsEmpty());
  EXPECT_THAT(Sent(Position(1, Received(40))), IsEmpty());
  const Messages messages = Position(2, reported);
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_EQ(messages[0].kind, Kind::kLearned);
  EXPECT_EQ(messages[0].decision.step, 141) << "as rank 0 has reported";
  EXPECT_EQ(messages[1].kind, Kind::kDecision);
  EXPECT_EQ(messages[1].rank, 0);
  EXPECT_FALSE(messages[1].decision.commit);
  EXPECT_EQ(messages[1].decision.stop, reported.stop);
  // And a rank that asks later.
  const Messages later = Announce(1, 41);
  ASSERT_THAT(later, SizeIs(1));
  EXPECT_EQ(later[0].rank, 1);
  EXPECT_EQ(later[0].decision.stop, reported.stop);
  EXPECT_THAT(asked_, IsEmpty()) << "it was not decided again";
}

TEST_F(ResumedAgreementTest, WhatWasKeptAnswersThoseBehind) {
  Decision kept = Received(41);
  kept.step = 141;
  kept.next_step = 142;
  kept.regroup = "2 spares wait";
  agreement().Restore(kept);
  EXPECT_TRUE(agreement().regrouped());
  EXPECT_THAT(Sent(Position(0, Received(40))), IsEmpty());
  const Messages messages = Announce(0, 41);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].decision.regroup, kept.regroup);
}

TEST_F(ResumedAgreementTest, RanksKnowMoreThanWhatWasKept) {
  agreement().Restore(Received(39));
  Position(0, Received(41));
  EXPECT_EQ(agreement().round(), 42);
}

TEST_F(ResumedAgreementTest, WhatNoRankHasReceivedIsDecidedAgain) {
  agreement().Restore(Received(40));
  for (int rank = 0; rank < kWorld; ++rank) Position(rank, Received(40));
  Announce(0, 41);
  Announce(1, 41);
  const Messages messages = Announce(2, 41);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].rank, StepAgreement::Message::kAllRanks);
}

TEST_F(ResumedAgreementTest, ATicketBeforeThePositionIsHeld) {
  EXPECT_THAT(Announce(1, 42), IsEmpty());
  Vote vote;
  vote.round = 42;
  EXPECT_THAT(agreement().OnVote(1, vote, now_), IsEmpty());
  EXPECT_OK(agreement().failure());
  EXPECT_THAT(Sent(Position(1, Received(41))), IsEmpty());
  EXPECT_THAT(agreement().Missing(), ElementsAre(0, 2));
  Position(0, Received(41));
  Position(2, Received(41));
  Announce(0, 42);
  EXPECT_THAT(Announce(2, 42), SizeIs(1));
}

// Another rank's position has the same effect.
TEST_F(ResumedAgreementTest, AHeldTicketCountsOnceItsRoundCanBe) {
  Announce(1, 42);
  Position(0, Received(41));
  EXPECT_EQ(agreement().last_tickets()[1]->ticket.round, 42);
}

TEST_F(ResumedAgreementTest, TimeoutsBeginWhenAllAreBack) {
  Position(0, Received(41));
  Announce(0, 42);
  EXPECT_EQ(agreement().deadline(), absl::InfiniteFuture());
  now_ += 10 * kTimeout;
  EXPECT_THAT(agreement().Tick(now_), IsEmpty());
  agreement().OnBack(1, now_);
  EXPECT_EQ(agreement().deadline(), absl::InfiniteFuture());
  agreement().OnBack(2, now_);
  agreement().OnBack(2, now_ + absl::Seconds(1));
  EXPECT_EQ(agreement().deadline(), now_ + kTimeout);
  now_ += kTimeout;
  agreement().Tick(now_);
  EXPECT_THAT(agreement().failure(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("ranks 1, 2")));
}

// Of two tickets that differ, the outlier would not be known.
TEST_F(ResumedAgreementTest, AMismatchWaitsForThoseWhoAreAway) {
  Announce(0, 0);
  Ticket other = TicketOf(0);
  other.hook = "bf16";
  agreement().OnTicket(1, other, now_);
  now_ += kTimeout;
  agreement().Tick(now_);
  EXPECT_OK(agreement().failure());
  Announce(2, 0);
  EXPECT_THAT(agreement().failure(),
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("bf16 on rank 1"),
                             HasSubstr("allreduce on ranks 0, 2"))));
}

TEST_F(ResumedAgreementTest, ARankThatHasLeftIsNotAwaited) {
  options_.absent = {0, 1};
  agreement().Restore(Received(41));
  agreement().OnMemberLeft(2, now_);
  Position(0, Received(40));
  Announce(0, 41);
  Position(1, Received(41));
  EXPECT_OK(agreement().failure());
  Announce(0, 42);
  Announce(1, 42);
  EXPECT_THAT(agreement().failure(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 left")));
}

TEST_F(ResumedAgreementTest, APlanThatNoRankHasReceivedComesNow) {
  options_.undelivered = PlanOf(2);
  for (int rank = 0; rank < kWorld; ++rank) Position(rank, Received(40));
  Announce(0, 41, 1);
  Announce(1, 41, 1);
  const Messages messages = Announce(2, 41, 1);
  ASSERT_THAT(messages, SizeIs(1));
  ASSERT_TRUE(messages[0].decision.plan.has_value());
  EXPECT_EQ(messages[0].decision.plan->version, 2);
  EXPECT_THAT(asked_, IsEmpty()) << "one more would hide it";
  for (int rank = 0; rank < kWorld; ++rank) Announce(rank, 42, 2);
  EXPECT_EQ(agreement().round(), 43);
  EXPECT_THAT(asked_, ElementsAre(143));
}

TEST_F(ResumedAgreementTest, APlanThatTheRanksFollowIsNotSentAgain) {
  options_.undelivered = PlanOf(2);
  for (int rank = 0; rank < kWorld; ++rank) Position(rank, Received(40));
  for (int rank = 0; rank < kWorld; ++rank) Announce(rank, 41, 2);
  EXPECT_OK(agreement().failure());
  EXPECT_EQ(agreement().round(), 42);
  EXPECT_EQ(agreement().plan().version, 2);
  EXPECT_THAT(asked_, ElementsAre(142));
}

// A rank may report such a plan, whatever it has received.
TEST_F(ResumedAgreementTest, APlanWithoutANumberIsNotTheUndeliveredOne) {
  Decision reported = Received(41);
  reported.plan = PlanOf(0);
  Position(0, reported);
  EXPECT_EQ(agreement().plan().version, 1);
  EXPECT_EQ(agreement().plan().hook, PlanOf(1).hook);
}

TEST_F(ResumedAgreementTest, APlanThatOneHasReceivedAllReceive) {
  options_.undelivered = PlanOf(2);
  Decision reported = Received(41);
  reported.plan = PlanOf(2);
  reported.plan->at_step = 0;  // is not on the wire
  options_.undelivered->at_step = 142;
  Position(0, Received(40));
  Announce(0, 41, 1);
  const Messages messages = Sent(Position(1, reported));
  ASSERT_THAT(messages, SizeIs(1));
  ASSERT_TRUE(messages[0].decision.plan.has_value());
  EXPECT_EQ(messages[0].decision.plan->at_step, 142);
  EXPECT_EQ(agreement().plan().version, 2);
}

TEST_F(ResumedAgreementTest, PositionsThatCannotBeAreNamed) {
  Decision unknown = Received(41);
  unknown.plan = PlanOf(7);
  Position(1, unknown);
  EXPECT_THAT(agreement().failure(),
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("rank 1"), HasSubstr("round 41"),
                             HasSubstr("was not made"))));
}

TEST_F(ResumedAgreementTest, TwoDecisionsOnOneRoundAreNamed) {
  Position(0, Received(41));
  Decision other = Received(41);
  other.commit = false;
  Position(2, other);
  EXPECT_THAT(agreement().failure(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2")));
}

TEST_F(ResumedAgreementTest, APositionIsNoNewsToAnAgreementThatDecided) {
  options_.resumed = false;
  options_.absent.clear();
  for (int rank = 0; rank < kWorld; ++rank) Announce(rank, 0);
  EXPECT_THAT(Position(1, Received(0)), IsEmpty());
  EXPECT_OK(agreement().failure());
  Position(1, Received(1));
  EXPECT_THAT(agreement().failure(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("was not made")));
}

TEST_F(ResumedAgreementTest, ACheckpointThatOneRankHasReceivedIsSentToAll) {
  Decision reported = Received(41);
  reported.checkpoint = "an operator";
  EXPECT_THAT(Sent(Position(0, Received(40))), IsEmpty());
  EXPECT_THAT(Announce(0, 41), IsEmpty());
  const Messages messages = Position(2, reported);
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_EQ(messages[0].kind, Kind::kLearned);
  EXPECT_EQ(messages[0].decision.checkpoint, reported.checkpoint);
  EXPECT_EQ(messages[1].rank, 0);
  EXPECT_EQ(messages[1].decision.checkpoint, reported.checkpoint);
}

TEST_F(ResumedAgreementTest, ACheckpointThatOthersHaveNotReceivedContradicts) {
  Decision reported = Received(41);
  reported.checkpoint = "an operator";
  Position(0, reported);
  Position(1, Received(41));
  EXPECT_THAT(
      agreement().failure(),
      StatusIs(absl::StatusCode::kAborted,
               HasSubstr("rank 1 has received a decision on round 41")));
}

}  // namespace
}  // namespace coxswain::schedule
