#include "schedule/step_agent.h"

#include <variant>

#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::schedule::step_agent_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Ticket TicketOf(int64_t step) {
  Ticket ticket;
  ticket.step = step;
  return ticket;
}

Decision SkipFor(const std::string& reason) {
  Decision decision;
  decision.commit = false;
  decision.reason = reason;
  return decision;
}

void Deliver(StepAgent* agent, int64_t round, Decision decision) {
  decision.round = round;
  agent->OnDecision(decision);
}

bool IsTicket(const StepAgent::Outgoing& outgoing) {
  return std::holds_alternative<Ticket>(outgoing);
}

class StepAgentTest : public ::testing::Test {
 protected:
  StepAgent MakeAgent(Enforcement enforcement, bool commit_vote = false) {
    StepAgent::Options options;
    options.stream = "train";
    options.terms.enforcement = enforcement;
    options.terms.commit_vote = commit_vote;
    options.timeout = absl::Seconds(60);
    options.resend = absl::Seconds(5);
    return StepAgent(options);
  }
  absl::Time now() const { return clock_.Now(); }

  FakeClock clock_;
};

TEST_F(StepAgentTest, AnAuditedRound) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  EXPECT_FALSE(agent.granted());
  EXPECT_EQ(agent.deadline(), absl::InfiniteFuture());
  ASSERT_OK(agent.Announce(TicketOf(3), now()));
  EXPECT_TRUE(agent.granted());  // it does not wait
  EXPECT_FALSE(agent.decided());
  EXPECT_EQ(agent.deadline(), now());
  const auto sent = agent.Take(now());
  ASSERT_THAT(sent, SizeIs(1));
  ASSERT_TRUE(IsTicket(sent[0]));
  EXPECT_EQ(std::get<Ticket>(sent[0]).round, 0);
  EXPECT_EQ(std::get<Ticket>(sent[0]).step, 3);
  ASSERT_OK(agent.Vote({}, now()));
  EXPECT_THAT(agent.Take(now()), SizeIs(0));  // the vote does not count
  Deliver(&agent, 0, SkipFor("rank 1: not finite"));
  ASSERT_TRUE(agent.decided());
  EXPECT_EQ(agent.deadline(), absl::InfiniteFuture());
  const Decision decision = agent.TakeDecision();
  EXPECT_FALSE(decision.commit);
  EXPECT_EQ(decision.reason, "rank 1: not finite");
  EXPECT_EQ(agent.round(), 1);
  ASSERT_OK(agent.Announce(TicketOf(4), now()));
  EXPECT_EQ(std::get<Ticket>(agent.Take(now())[0]).round, 1);
}

TEST_F(StepAgentTest, AStrictRoundWaitsForItsGrant) {
  StepAgent agent = MakeAgent(Enforcement::kStrict);
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  EXPECT_FALSE(agent.granted());
  agent.OnGrant(1);
  EXPECT_FALSE(agent.granted());
  agent.OnGrant(0);
  EXPECT_TRUE(agent.granted());
  Deliver(&agent, 0, {});
  agent.TakeDecision();
  // The grant was for one round only.
  ASSERT_OK(agent.Announce(TicketOf(1), now()));
  EXPECT_FALSE(agent.granted());
}

TEST_F(StepAgentTest, ADecisionReplacesALostGrant) {
  StepAgent agent = MakeAgent(Enforcement::kStrict);
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  Deliver(&agent, 0, {});
  EXPECT_TRUE(agent.granted());
}

TEST_F(StepAgentTest, WithoutEnforcementItDecidesItself) {
  StepAgent agent = MakeAgent(Enforcement::kOff);
  for (int step = 0; step < 3; ++step) {
    ASSERT_OK(agent.Announce(TicketOf(step), now()));
    EXPECT_THAT(agent.Take(now()), SizeIs(0));
    EXPECT_TRUE(agent.granted());
    ASSERT_OK(agent.Vote({}, now()));
    ASSERT_TRUE(agent.decided());
    EXPECT_TRUE(agent.TakeDecision().commit);
  }
}

TEST_F(StepAgentTest, WhatIsNotAnsweredIsSentAgain) {
  StepAgent agent = MakeAgent(Enforcement::kAudit, /*commit_vote=*/true);
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  EXPECT_THAT(agent.Take(now()), SizeIs(1));
  clock_.Advance(absl::Seconds(4));
  Vote vote;
  vote.commit = false;
  vote.reason = "not finite";
  ASSERT_OK(agent.Vote(vote, now()));
  const auto first = agent.Take(now());
  ASSERT_THAT(first, SizeIs(1));
  ASSERT_FALSE(IsTicket(first[0]));
  EXPECT_EQ(std::get<Vote>(first[0]).round, 0);
  EXPECT_EQ(std::get<Vote>(first[0]).reason, "not finite");
  EXPECT_THAT(agent.Take(now()), SizeIs(0));
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(agent.due(), now());
  const auto second = agent.Take(now());
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_TRUE(IsTicket(second[0]));
  clock_.Advance(absl::Seconds(4));
  EXPECT_FALSE(IsTicket(agent.Take(now())[0]));
  Deliver(&agent, 0, {});
  clock_.Advance(absl::Seconds(60));
  EXPECT_THAT(agent.Take(now()), SizeIs(0));
}

TEST_F(StepAgentTest, ANewConnectionIsSentEverythingUnanswered) {
  StepAgent agent = MakeAgent(Enforcement::kAudit, /*commit_vote=*/true);
  agent.OnConnected();
  EXPECT_THAT(agent.Take(now()), SizeIs(0));
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  ASSERT_OK(agent.Vote({}, now()));
  EXPECT_THAT(agent.Take(now()), SizeIs(2));
  agent.OnConnected();
  const auto sent = agent.Take(now());
  ASSERT_THAT(sent, SizeIs(2));
  // In the order that the coordinator needs.
  EXPECT_TRUE(IsTicket(sent[0]));
  EXPECT_FALSE(IsTicket(sent[1]));
  Deliver(&agent, 0, {});
  agent.OnConnected();
  EXPECT_THAT(agent.Take(now()), SizeIs(0));
}

TEST_F(StepAgentTest, AnswersOfOtherRoundsAndRepeatedOnesAreIgnored) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  Deliver(&agent, 0, SkipFor("before its ticket"));
  EXPECT_FALSE(agent.decided());
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  EXPECT_FALSE(agent.decided());
  Deliver(&agent, 1, SkipFor("of the next round"));
  EXPECT_FALSE(agent.decided());
  Deliver(&agent, 0, {});
  Deliver(&agent, 0, SkipFor("another one"));
  EXPECT_TRUE(agent.TakeDecision().commit);
  ASSERT_OK(agent.Announce(TicketOf(1), now()));
  Deliver(&agent, 0, SkipFor("late"));
  EXPECT_FALSE(agent.decided());
}

TEST_F(StepAgentTest, WaitsEndWithTheTimeout) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  EXPECT_FALSE(agent.Expired(now()));
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  agent.Take(now());
  clock_.Advance(absl::Seconds(59));
  agent.Take(now());
  EXPECT_FALSE(agent.Expired(now()));
  EXPECT_EQ(agent.deadline(), now() + absl::Seconds(1));
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(agent.Expired(now()));
  // The vote begins another wait.
  ASSERT_OK(agent.Vote({}, now()));
  EXPECT_FALSE(agent.Expired(now()));
  clock_.Advance(absl::Seconds(60));
  EXPECT_TRUE(agent.Expired(now()));
  Deliver(&agent, 0, {});
  EXPECT_FALSE(agent.Expired(now()));
}

TEST_F(StepAgentTest, TheTimeoutOutlastsTheCoordinators) {
  Terms terms;
  terms.progress_timeout = absl::Seconds(20);
  EXPECT_EQ(StepTimeoutOf(terms), absl::Seconds(50));
  terms.on_stall = OnStall::kWarn;
  EXPECT_EQ(StepTimeoutOf(terms), absl::Seconds(230));
}

TEST_F(StepAgentTest, AStopGoesWithWhatIsSentNext) {
  StepAgent agent = MakeAgent(Enforcement::kAudit, /*commit_vote=*/true);
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  agent.RequestStop("a signal");
  agent.RequestStop("another one");
  // A repetition must be the same as what was sent first.
  EXPECT_EQ(std::get<Ticket>(agent.Take(now())[0]).stop, "");
  ASSERT_OK(agent.Vote({}, now()));
  EXPECT_EQ(std::get<Vote>(agent.Take(now())[0]).stop, "a signal");
  Deliver(&agent, 0, {});
  agent.TakeDecision();
  ASSERT_OK(agent.Announce(TicketOf(1), now()));
  EXPECT_EQ(std::get<Ticket>(agent.Take(now())[0]).stop, "a signal");
}

TEST_F(StepAgentTest, APlanCountsFromTheNextRoundOn) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  Decision decision;
  decision.plan.emplace();
  decision.plan->terms.enforcement = Enforcement::kStrict;
  decision.plan->terms.commit_vote = true;
  decision.plan->terms.progress_timeout = absl::Seconds(1);
  Deliver(&agent, 0, decision);
  EXPECT_FALSE(agent.options().terms.commit_vote);
  EXPECT_TRUE(agent.granted());
  agent.TakeDecision();
  EXPECT_EQ(agent.options().timeout, absl::Seconds(31));
  ASSERT_OK(agent.Announce(TicketOf(1), now()));
  EXPECT_FALSE(agent.granted());
  ASSERT_OK(agent.Vote({}, now()));
  EXPECT_THAT(agent.Take(now()), SizeIs(2));
  decision.plan->terms = {};
  decision.plan->terms.enforcement = Enforcement::kOff;
  Deliver(&agent, 1, decision);
  agent.TakeDecision();
  ASSERT_OK(agent.Announce(TicketOf(2), now()));
  EXPECT_TRUE(agent.decided());
}

TEST_F(StepAgentTest, CallsOutOfOrderAreErrors) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  EXPECT_THAT(agent.Vote({}, now()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("round 0 is not announced")));
  ASSERT_OK(agent.Announce(TicketOf(5), now()));
  EXPECT_THAT(agent.Announce(TicketOf(6), now()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'train'"), HasSubstr("step 5"),
                             HasSubstr("before step 6"))));
  EXPECT_THAT(agent.Follow({}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("round 0 of the stream 'train'")));
  ASSERT_OK(agent.Vote({}, now()));
  EXPECT_THAT(agent.Vote({}, now()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("vote already")));
  Deliver(&agent, 0, {});
  EXPECT_THAT(agent.Announce(TicketOf(6), now()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("take its decision")));
}

TEST_F(StepAgentTest, KnowsTheLastDecisionThatCame) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  EXPECT_FALSE(agent.last_decision().has_value());
  ASSERT_OK(agent.Announce(TicketOf(3), now()));
  EXPECT_FALSE(agent.last_decision().has_value());
  Deliver(&agent, 0, SkipFor("rank 1: not finite"));
  // Before it is taken, after it, and in the next round.
  for (int i = 0; i < 3; ++i) {
    const auto received = agent.last_decision();
    ASSERT_TRUE(received.has_value());
    EXPECT_EQ(received->round, 0);
    EXPECT_EQ(received->reason, "rank 1: not finite");
    if (i == 0) agent.TakeDecision();
    if (i == 1) {
      ASSERT_OK(agent.Announce(TicketOf(4), now()));
    }
  }
  Deliver(&agent, 1, {});
  EXPECT_EQ(agent.last_decision()->round, 1);
}

TEST_F(StepAgentTest, ItsOwnDecisionsAreNotThoseOfAll) {
  StepAgent agent = MakeAgent(Enforcement::kOff);
  ASSERT_OK(agent.Announce(TicketOf(0), now()));
  EXPECT_FALSE(agent.last_decision().has_value());
  agent.TakeDecision();
  EXPECT_FALSE(agent.last_decision().has_value());
}

TEST_F(StepAgentTest, ADrainGoesWithTheNextTicketAndEndsTheRounds) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  ASSERT_OK(agent.Announce(TicketOf(3), now()));
  agent.RequestDrain("SIGTERM");
  agent.RequestDrain("again");
  EXPECT_EQ(std::get<Ticket>(agent.Take(now())[0]).drain, "")
      << "what it sends is settled";
  Deliver(&agent, 0, {});
  agent.TakeDecision();
  ASSERT_OK(agent.Announce(TicketOf(4), now()));
  EXPECT_EQ(std::get<Ticket>(agent.Take(now())[0]).drain, "SIGTERM");
  Decision last;
  last.regroup = "rank 1 drains: SIGTERM";
  Deliver(&agent, 1, last);
  EXPECT_EQ(agent.TakeDecision().regroup, last.regroup);
  EXPECT_THAT(agent.Announce(TicketOf(5), now()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(last.regroup), HasSubstr("step 5"),
                             HasSubstr("Rejoin"))));
}

TEST_F(StepAgentTest, AnotherCoordinatorIsGivenItsOwnTime) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  ASSERT_OK(agent.Announce(TicketOf(3), now()));
  clock_.Advance(absl::Seconds(59));
  agent.OnOtherCoordinator(now());
  clock_.Advance(absl::Seconds(59));
  EXPECT_FALSE(agent.Expired(now()));
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(agent.Expired(now()));
}

TEST_F(StepAgentTest, ACheckpointIsAskedForUntilADecisionHasIt) {
  StepAgent agent = MakeAgent(Enforcement::kAudit);
  agent.RequestCheckpoint("SIGTERM");
  agent.RequestCheckpoint("again");
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(agent.Announce(TicketOf(step), now()));
    EXPECT_EQ(std::get<Ticket>(agent.Take(now())[0]).checkpoint, "SIGTERM")
        << step;
    Decision decision;
    if (step == 1) decision.checkpoint = "rank 0 asks: SIGTERM";
    Deliver(&agent, step, decision);
    EXPECT_EQ(agent.TakeDecision().checkpoint, decision.checkpoint);
  }
  ASSERT_OK(agent.Announce(TicketOf(2), now()));
  EXPECT_EQ(std::get<Ticket>(agent.Take(now())[0]).checkpoint, "");
}

TEST_F(StepAgentTest, WithoutEnforcementTheStepsAloneDecideWhatIsSaved) {
  StepAgent agent = MakeAgent(Enforcement::kOff);
  Terms terms;
  terms.enforcement = Enforcement::kOff;
  terms.checkpoint_every = 2;
  ASSERT_OK(agent.Follow(terms));
  for (int step = 0; step < 4; ++step) {
    ASSERT_OK(agent.Announce(TicketOf(step), now()));
    Vote vote;
    vote.commit = step < 3;
    ASSERT_OK(agent.Vote(vote, now()));
    EXPECT_EQ(agent.TakeDecision().checkpoint,
              step == 1 ? "checkpoint_every=2" : "")
        << step;
  }
  terms.sync_each_batch = true;
  ASSERT_OK(agent.Follow(terms));
  for (int micro = 0; micro < 2; ++micro) {
    Ticket ticket = TicketOf(5);
    ticket.micro = micro;
    ticket.window = 2;
    ASSERT_OK(agent.Announce(ticket, now()));
    EXPECT_EQ(agent.TakeDecision().checkpoint.empty(), micro == 0);
  }
}

}  // namespace
}  // namespace coxswain::schedule::step_agent_test
