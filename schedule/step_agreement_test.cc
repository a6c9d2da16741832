#include "schedule/step_agreement.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/types.pb.h"
#include "transport/error_detail.h"

namespace coxswain::schedule::step_agreement_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;
using Kind = StepAgreement::Message::Kind;

constexpr absl::Duration kTimeout = absl::Seconds(5);

// A few ranks, and a clock.
class Ranks {
 public:
  explicit Ranks(int world_size, const std::function<void(Plan*)>& edit = {}) {
    options_.stream = "train";
    options_.world_size = world_size;
    options_.plan.version = 1;
    options_.plan.accumulation_steps = 4;
    options_.plan.hook = "allreduce";
    options_.plan.terms.progress_timeout = kTimeout;
    if (edit) edit(&options_.plan);
    options_.next_plan = [this](int64_t step) {
      asked_.push_back(step);
      return std::exchange(next_, std::nullopt);
    };
    agreement_.emplace(options_);
  }

  StepAgreement& agreement() { return *agreement_; }
  int world() const { return options_.world_size; }
  absl::Time now() const { return now_; }
  void Wait(absl::Duration duration) { now_ += duration; }
  void PlanNext(const Plan& plan) { next_ = plan; }
  const std::vector<int64_t>& asked() const { return asked_; }

  // Returns what a correct rank announces for the present round.
  Ticket Honest(int rank) const {
    const Plan& plan = agreement_->plan();
    Ticket ticket;
    ticket.round = agreement_->round();
    ticket.step = ticket.round + 100;
    ticket.window = plan.WindowOf(rank, options_.world_size);
    ticket.micro_batches = plan.terms.sync_each_batch ? 1 : ticket.window;
    ticket.weight = ticket.micro_batches;
    ticket.plan_version = plan.version;
    ticket.hook = plan.hook;
    return ticket;
  }
  StepAgreement::Messages Announce(int rank) {
    return agreement_->OnTicket(rank, Honest(rank), now_);
  }
  StepAgreement::Messages Announce(int rank,
                                   const std::function<void(Ticket*)>& edit) {
    Ticket ticket = Honest(rank);
    edit(&ticket);
    return agreement_->OnTicket(rank, ticket, now_);
  }
  // All but some announce. Returns the last messages.
  StepAgreement::Messages AnnounceAllBut(const std::vector<int>& left_out) {
    StepAgreement::Messages last;
    const int64_t round = agreement_->round();
    for (int rank = 0; rank < world(); ++rank) {
      if (std::count(left_out.begin(), left_out.end(), rank) > 0) continue;
      EXPECT_EQ(agreement_->round(), round);
      last = Announce(rank);
    }
    return last;
  }
  StepAgreement::Messages Vote(int rank, bool commit = true,
                               const std::string& reason = "") {
    schedule::Vote vote;
    vote.round = agreement_->round();
    vote.commit = commit;
    vote.reason = reason;
    return agreement_->OnVote(rank, vote, now_);
  }
  StepAgreement::Messages Tick() { return agreement_->Tick(now_); }

  v1::ScheduleMismatch Mismatch() const {
    const v1::ErrorDetail detail = DetailOf(agreement_->failure());
    EXPECT_TRUE(detail.has_schedule_mismatch());
    return detail.schedule_mismatch();
  }
  std::vector<int> Outliers() const {
    const v1::ScheduleMismatch mismatch = Mismatch();
    return {mismatch.odd_ranks().begin(), mismatch.odd_ranks().end()};
  }
  testing::Matcher<absl::Status> FailsWith(const std::string& text) {
    return StatusIs(absl::StatusCode::kAborted, HasSubstr(text));
  }

 private:
  StepAgreement::Options options_;
  std::optional<StepAgreement> agreement_;
  std::optional<Plan> next_;
  std::vector<int64_t> asked_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

void Strict(Plan* plan) { plan->terms.enforcement = Enforcement::kStrict; }
void Voting(Plan* plan) { plan->terms.commit_vote = true; }

TEST(StepAgreementTest, TheLastTicketBringsTheDecisionForAll) {
  Ranks ranks(3);
  EXPECT_THAT(ranks.Announce(2), IsEmpty());
  ranks.Wait(absl::Milliseconds(30));
  EXPECT_THAT(ranks.Announce(0), IsEmpty());
  EXPECT_THAT(ranks.agreement().Missing(), ElementsAre(1));
  const StepAgreement::Messages messages = ranks.Announce(1);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].kind, Kind::kDecision);
  EXPECT_EQ(messages[0].rank, StepAgreement::Message::kAllRanks);
  EXPECT_EQ(messages[0].round, 0);
  const Decision& decision = messages[0].decision;
  EXPECT_EQ(decision.step, 100);
  EXPECT_TRUE(decision.commit);
  EXPECT_EQ(decision.stop, "");
  EXPECT_EQ(decision.tickets_took, absl::Milliseconds(30));
  EXPECT_EQ(decision.last_rank, 1);
  EXPECT_EQ(decision.plan_version, 1);
  EXPECT_EQ(ranks.agreement().round(), 1);
  EXPECT_TRUE(ranks.agreement().last_tickets()[0]->decided);
  EXPECT_EQ(ranks.agreement().deadline(), absl::InfiniteFuture());
}

TEST(StepAgreementTest, StrictGrantsFirstAndAuditDoesNot) {
  Ranks ranks(2, Strict);
  ranks.Announce(0);
  const StepAgreement::Messages messages = ranks.Announce(1);
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_EQ(messages[0].kind, Kind::kGrant);
  EXPECT_EQ(messages[1].kind, Kind::kDecision);
}

TEST(StepAgreementTest, WithVotesTheGrantComesBeforeTheDecision) {
  Ranks ranks(2, [](Plan* plan) {
    Strict(plan);
    Voting(plan);
  });
  ranks.Announce(0);
  const StepAgreement::Messages messages = ranks.Announce(1);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].kind, Kind::kGrant);
  EXPECT_THAT(ranks.agreement().Missing(), IsEmpty());
  EXPECT_THAT(ranks.Vote(1), IsEmpty());
  EXPECT_THAT(ranks.agreement().Missing(), ElementsAre(0));
  EXPECT_THAT(ranks.Vote(0), SizeIs(1));
}

TEST(StepAgreementTest, ARepeatedTicketIsAnsweredAgain) {
  Ranks ranks(2, Strict);
  const Ticket first = ranks.Honest(0);
  ranks.Announce(0);
  EXPECT_THAT(ranks.Announce(0), IsEmpty());
  ranks.Announce(1);
  const StepAgreement::Messages again =
      ranks.agreement().OnTicket(0, first, ranks.now());
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0].kind, Kind::kGrant);
  EXPECT_EQ(again[1].kind, Kind::kDecision);
  EXPECT_EQ(again[1].rank, 0);
  EXPECT_EQ(again[1].decision.step, 100);
  for (int i = 0; i < StepAgreement::kRemembered; ++i) ranks.AnnounceAllBut({});
  EXPECT_THAT(ranks.agreement().OnTicket(0, first, ranks.now()), IsEmpty());
  EXPECT_OK(ranks.agreement().failure());
}

TEST(StepAgreementTest, ARepeatedTicketMayAddAStop) {
  Ranks ranks(2);
  ranks.Announce(0);
  ranks.Announce(0, [](Ticket* ticket) { ticket->stop = "preempted"; });
  EXPECT_EQ(ranks.Announce(1)[0].decision.stop, "rank 0: preempted");
}

TEST(StepAgreementTest, ADifferentTicketUnderTheSameNumberFails) {
  Ranks ranks(3);
  ranks.Announce(1);
  ranks.Announce(1, [](Ticket* ticket) { ticket->digest = 5; });
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("rank 1 has announced two different things "
                              "under round 0"));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(1));
  EXPECT_THAT(ranks.AnnounceAllBut({}), IsEmpty()) << "it has failed";
}

TEST(StepAgreementTest, ARoundThatIsNotTheNextOneFails) {
  Ranks ranks(3);
  ranks.Announce(1, [](Ticket* ticket) { ticket->round = 1; });
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("rank 1 has announced round 1 before round 0 "
                              "was decided"));
}

TEST(StepAgreementTest, TheOffByOneRankIsNamedWithBothCounts) {
  Ranks ranks(4);
  for (int rank : {2, 0, 1}) {
    ranks.Announce(rank, [&](Ticket* ticket) {
      if (rank == 2) ticket->micro_batches = 3;
    });
    EXPECT_OK(ranks.agreement().failure()) << "waits for the others";
  }
  ranks.Announce(3);
  EXPECT_THAT(
      ranks.agreement().failure(),
      StatusIs(absl::StatusCode::kAborted,
               AllOf(StartsWith("step 100 of stream \"train\": ranks differ: "
                                "micro_batches: 3 on rank 2, 4 on ranks 0, 1, "
                                "3 (4 by the plan); look for "),
                     HasSubstr("accumulation setting"))));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(2));
  EXPECT_EQ(ranks.Mismatch().stream(), "train");
  EXPECT_EQ(ranks.Mismatch().round(), 0);
  EXPECT_THAT(ranks.Mismatch().differences(), SizeIs(1));
}

TEST(StepAgreementTest, AMismatchWaitsForTheOthersOnlyShortly) {
  Ranks ranks(4);
  ranks.Announce(2);
  ranks.Announce(0, [](Ticket* ticket) { ticket->layout = 7; });
  EXPECT_EQ(ranks.agreement().deadline(), ranks.now() + absl::Seconds(1));
  ranks.Wait(absl::Seconds(1));
  ranks.Tick();
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("layout of the buckets: 0000000000000000 on rank "
                              "2, 0000000000000007 on rank 0; nothing came "
                              "from ranks 1, 3 in this step"));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(0, 2)) << "there is no majority";
}

TEST(StepAgreementTest, AProgramThatCountsByItselfHasAnyCommonCount) {
  Ranks ranks(3, [](Plan* plan) { plan->terms.windows = Windows::kProgram; });
  for (int count : {1, 7}) {
    for (int rank : {0, 1, 2}) {
      ranks.Announce(rank, [&](Ticket* ticket) {
        ticket->micro_batches = ticket->window = count;
      });
    }
    EXPECT_OK(ranks.agreement().failure());
  }
  for (int rank : {0, 1, 2}) {
    ranks.Announce(rank, [&](Ticket* ticket) {
      ticket->micro_batches = rank == 1 ? 2 : 3;
    });
  }
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("micro_batches: 2 on rank 1, 3 on ranks 0, 2; "));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(1));
}

TEST(StepAgreementTest, AProgramThatCountsByItselfHasACount) {
  Ranks ranks(2, [](Plan* plan) { plan->terms.windows = Windows::kProgram; });
  for (int rank : {0, 1}) {
    ranks.Announce(rank, [](Ticket* ticket) {
      ticket->micro_batches = 0;
      ticket->weight = 0;
    });
  }
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("micro_batches: 0 on ranks 0, 1"));
}

TEST(StepAgreementTest, AllThatCountOtherwiseThanThePlanAreNamed) {
  Ranks ranks(2);
  for (int rank : {0, 1}) {
    ranks.Announce(rank, [](Ticket* ticket) { ticket->micro_batches = 8; });
  }
  EXPECT_THAT(
      ranks.agreement().failure(),
      ranks.FailsWith("micro_batches: 8 on ranks 0, 1 (4 by the plan)"));
}

TEST(StepAgreementTest, TheRankThatSkippedASyncIsNamedAlsoOfTwo) {
  for (int skipper : {0, 1}) {
    Ranks ranks(2);
    ranks.AnnounceAllBut({});
    for (int rank : {0, 1}) {
      ranks.Announce(rank, [&](Ticket* ticket) {
        if (rank == skipper) ++ticket->step;
        if (rank == skipper) ticket->digest = 1;
      });
    }
    EXPECT_THAT(ranks.agreement().failure(),
                ranks.FailsWith(absl::StrCat(
                    "rank ", skipper,
                    " skipped an exchange that the others made; look for a "
                    "condition around the backward pass")));
    EXPECT_THAT(ranks.agreement().failure(),
                StatusIs(absl::StatusCode::kAborted, Not(HasSubstr("digest"))))
        << "it follows from the other";
    EXPECT_THAT(ranks.Outliers(), ElementsAre(skipper));
  }
}

TEST(StepAgreementTest, EachFieldThatMustBeEqualIsShown) {
  const std::vector<std::pair<std::string, std::function<void(Ticket*)>>>
      fields = {
          {"plan_version: 2 on rank 1, 1 on ranks 0, 2",
           [](Ticket* t) { t->plan_version = 2; }},
          {"hook: fp16 on rank 1, allreduce on ranks 0, 2",
           [](Ticket* t) { t->hook = "fp16"; }},
          {"layout of the buckets: 0000000000000009 on rank 1",
           [](Ticket* t) { t->layout = 9; }},
          {"step: 7 on rank 1, 100 on ranks 0, 2; rank 1 made an exchange that "
           "the others did not",
           [](Ticket* t) { t->step = 7; }},
          {"data at its end: yes on rank 1, no on ranks 0, 2; micro_batches: 2 "
           "on rank 1, 4 on ranks 0, 2",
           [](Ticket* t) {
             t->micro_batches = 2;
             t->end_of_data = true;
           }},
          {"checksum of the parameters: 000000000000000a on rank 1, none on "
           "ranks 0, 2",
           [](Ticket* t) { t->checksum = 10; }},
          {"digest of the exchanges before: 0000000000000003 on rank 1",
           [](Ticket* t) { t->digest = 3; }},
          {"weight: nan on rank 1, 4 on ranks 0, 2",
           [](Ticket* t) { t->weight = std::nan(""); }},
          {"weight: -1 on rank 1", [](Ticket* t) { t->weight = -1; }},
      };
  for (const auto& [text, edit] : fields) {
    Ranks ranks(3);
    ranks.Announce(0);
    ranks.Announce(1, edit);
    ranks.Announce(2);
    EXPECT_THAT(ranks.agreement().failure(), ranks.FailsWith(text));
    EXPECT_THAT(ranks.Outliers(), ElementsAre(1)) << text;
  }
}

TEST(StepAgreementTest, WithSyncEachBatchThePlaceInTheWindowCounts) {
  const auto each = [](Plan* plan) { plan->terms.sync_each_batch = true; };
  Ranks ranks(3, each);
  ranks.AnnounceAllBut({});
  EXPECT_THAT(ranks.asked(), IsEmpty()) << "in the middle of a window";
  ranks.Announce(0, [](Ticket* ticket) { ticket->micro = 3; });
  ranks.Announce(1, [](Ticket* ticket) { ticket->micro = 3; });
  ranks.Announce(2, [](Ticket* ticket) { ticket->micro = 3; });
  EXPECT_THAT(ranks.asked(), ElementsAre(102));
  ranks.Announce(0);
  ranks.Announce(1, [](Ticket* ticket) { ticket->micro = 2; });
  ranks.Announce(2);
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("micro: 2 on rank 1, 0 on ranks 0, 2"));
}

TEST(StepAgreementTest, OfTwoWithSyncEachBatchTheOneThatIsNotAtTheNextStep) {
  const auto each = [](Plan* plan) { plan->terms.sync_each_batch = true; };
  for (int place : {2, 3}) {
    Ranks ranks(2, each);
    const auto at_place = [&](Ticket* ticket) { ticket->micro = place; };
    ranks.Announce(0, at_place);
    ranks.Announce(1, at_place);
    ranks.Announce(0, [](Ticket* ticket) { ticket->step = 100; });
    ranks.Announce(1, [](Ticket* ticket) { ticket->step = 101; });
    const int outlier = place == 2 ? 1 : 0;  // 3 ends the window of step 100
    EXPECT_THAT(ranks.Outliers(), ElementsAre(outlier));
  }
}

TEST(StepAgreementTest, UnevenDataIsAllowedWhereThePlanAllowsIt) {
  Ranks ranks(
      3, [](Plan* plan) { plan->terms.uneven_data = UnevenData::kWaitForAll; });
  ranks.Announce(0);
  ranks.Announce(1, [](Ticket* ticket) {
    ticket->micro_batches = 2;
    ticket->end_of_data = true;
  });
  EXPECT_THAT(ranks.Announce(2,
                             [](Ticket* ticket) {
                               ticket->micro_batches = 0;
                               ticket->weight = 0;
                             }),
              SizeIs(1));
  ranks.AnnounceAllBut({2});
  ranks.Announce(2, [](Ticket* ticket) { ticket->micro_batches = 0; });
  EXPECT_THAT(ranks.agreement().failure(), ranks.FailsWith("weight: 4 on"));
}

TEST(StepAgreementTest, WindowsMayDifferByThePlan) {
  Ranks ranks(3, [](Plan* plan) {
    plan->terms.on_resize = OnResize::kKeepGlobalBatch;
    plan->terms.uneven_data = UnevenData::kWaitForAll;
    plan->global_micro_batches = 8;  // 3, 3, 2
  });
  EXPECT_EQ(ranks.Honest(2).micro_batches, 2);
  EXPECT_THAT(ranks.AnnounceAllBut({}), SizeIs(1));
  ranks.Announce(0);
  ranks.Announce(1);
  ranks.Announce(2, [](Ticket* ticket) { ticket->micro_batches = 3; });
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("micro_batches: 3 on ranks 0-2 (2 or 3 by the "
                              "plan, the more on the first ranks)"));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(2));
}

TEST(StepAgreementTest, WhoAsksToSkipMakesAllSkip) {
  Ranks ranks(4);
  for (int rank : {0, 1, 2}) {
    ranks.Announce(rank, [&](Ticket* ticket) {
      if (rank != 1) ticket->skip = "a gradient is nan";
    });
  }
  const Decision decision = ranks.Announce(3)[0].decision;
  EXPECT_FALSE(decision.commit);
  EXPECT_EQ(decision.reason, "ranks 0, 2: a gradient is nan");
}

TEST(StepAgreementTest, OneVoteAgainstMakesAllSkip) {
  Ranks ranks(3, Voting);
  ranks.Vote(1, false, "loss exploded");  // may overtake the tickets
  ranks.AnnounceAllBut({});
  EXPECT_THAT(ranks.Vote(0), IsEmpty());
  const StepAgreement::Messages messages = ranks.Vote(2, false);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_FALSE(messages[0].decision.commit);
  EXPECT_EQ(messages[0].decision.reason,
            "rank 1: loss exploded; rank 2: voted against it");
}

TEST(StepAgreementTest, VotesAreFencedByTheirRound) {
  Ranks ranks(2, Voting);
  Vote old;
  ranks.AnnounceAllBut({});
  ranks.Vote(0);
  ranks.Vote(1);
  const StepAgreement::Messages again =
      ranks.agreement().OnVote(1, old, ranks.now());
  ASSERT_THAT(again, SizeIs(1)) << "answered, and not counted again";
  EXPECT_EQ(again[0].round, 0);
  EXPECT_EQ(again[0].rank, 1);
  ranks.AnnounceAllBut({});
  EXPECT_THAT(ranks.Vote(0), IsEmpty());
  EXPECT_THAT(ranks.Vote(0), IsEmpty());
  EXPECT_THAT(ranks.agreement().Missing(), ElementsAre(1));
}

TEST(StepAgreementTest, AVoteIsNotTakenBack) {
  Ranks ranks(2, Voting);
  ranks.Vote(0, true);
  ranks.Vote(0, false);
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("rank 0 has given two different votes on round "
                              "0"));
}

TEST(StepAgreementTest, AVoteOfALaterRoundFails) {
  Ranks ranks(2, Voting);
  Vote vote;
  vote.round = 3;
  ranks.agreement().OnVote(1, vote, ranks.now());
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("rank 1 has voted on round 3"));
}

TEST(StepAgreementTest, APlanRidesOnTheDecisionAndCountsFromTheNextRound) {
  Ranks ranks(2);
  Plan next = ranks.agreement().plan();
  next.version = 2;
  next.accumulation_steps = 2;
  Voting(&next);
  ranks.PlanNext(next);
  ranks.Announce(0);
  const Decision decision = ranks.Announce(1)[0].decision;
  ASSERT_TRUE(decision.plan.has_value());
  EXPECT_EQ(decision.plan->version, 2);
  EXPECT_THAT(ranks.asked(), ElementsAre(101));
  EXPECT_EQ(ranks.Honest(0).micro_batches, 2);
  EXPECT_THAT(ranks.AnnounceAllBut({}), IsEmpty()) << "votes come next";
  ranks.Vote(0);
  EXPECT_THAT(ranks.Vote(1), SizeIs(1));
  ranks.Announce(0);
  ranks.Announce(1, [](Ticket* ticket) { ticket->plan_version = 1; });
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("plan_version: 1 on rank 1, 2 on rank 0"));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(1)) << "the plan is known";
}

TEST(StepAgreementTest, AnotherStreamsPlanIsAdoptedByAWholeRound) {
  Ranks ranks(2);
  Plan next = ranks.agreement().plan();
  next.version = 2;
  next.accumulation_steps = 1;
  ranks.agreement().NotePlan(next);
  EXPECT_THAT(ranks.AnnounceAllBut({}), SizeIs(1)) << "still by the first";
  const auto by_second = [](Ticket* ticket) {
    ticket->plan_version = 2;
    ticket->micro_batches = 1;
  };
  ranks.Announce(0, by_second);
  EXPECT_THAT(ranks.Announce(1, by_second), SizeIs(1));
  EXPECT_EQ(ranks.agreement().plan().version, 2);
}

TEST(StepAgreementTest, ACarriedWindowMayHaveTheLengthOfThePlanBefore) {
  for (TailPolicy tail : {TailPolicy::kCarry, TailPolicy::kFlush}) {
    Ranks ranks(2, [&](Plan* plan) { plan->terms.tail = tail; });
    Plan next = ranks.agreement().plan();
    next.version = 2;
    next.accumulation_steps = 1;
    ranks.agreement().NotePlan(next);
    for (int rank : {0, 1}) {
      ranks.Announce(rank, [](Ticket* ticket) {
        ticket->plan_version = 2;
        ticket->window = ticket->micro_batches = 4;
      });
    }
    EXPECT_EQ(ranks.agreement().failure().ok(), tail == TailPolicy::kCarry);
  }
}

TEST(StepAgreementTest, ASilentRankIsNamedAfterTheTimeout) {
  Ranks ranks(4);
  ranks.AnnounceAllBut({});
  ranks.Wait(absl::Hours(1));
  EXPECT_THAT(ranks.Tick(), IsEmpty()) << "no rank waits";
  ranks.AnnounceAllBut({1, 3});
  EXPECT_EQ(ranks.agreement().deadline(), ranks.now() + kTimeout);
  ranks.Wait(kTimeout - absl::Milliseconds(1));
  ranks.Tick();
  EXPECT_OK(ranks.agreement().failure());
  ranks.Wait(absl::Milliseconds(1));
  ranks.Tick();
  EXPECT_THAT(
      ranks.agreement().failure(),
      ranks.FailsWith("step 101 of stream \"train\": ranks 1, 3 did "
                      "not announce it within 5s of the first to do "
                      "so: the last ticket was of step 100; look for "));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(1, 3));
  EXPECT_EQ(ranks.agreement().deadline(), absl::InfiniteFuture());
}

TEST(StepAgreementTest, AMissingVoteIsNamedAfterTheTimeout) {
  Ranks ranks(3, Voting);
  ranks.AnnounceAllBut({});
  ranks.Wait(absl::Hours(1));
  EXPECT_THAT(ranks.Tick(), IsEmpty()) << "the exchange may be long";
  ranks.Vote(2);
  ranks.Wait(kTimeout);
  ranks.Tick();
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("ranks 0, 1 did not vote on it within 5s"));
}

TEST(StepAgreementTest, OnStallWarnWarnsOncePerRound) {
  Ranks ranks(2, [](Plan* plan) { plan->terms.on_stall = OnStall::kWarn; });
  for (int round = 0; round < 2; ++round) {
    ranks.Announce(0);
    ranks.Wait(kTimeout);
    const StepAgreement::Messages messages = ranks.Tick();
    ASSERT_THAT(messages, SizeIs(1));
    EXPECT_EQ(messages[0].kind, Kind::kWarning);
    EXPECT_THAT(messages[0].text, HasSubstr("rank 1 did not announce it"));
    EXPECT_EQ(ranks.agreement().deadline(), absl::InfiniteFuture());
    ranks.Wait(absl::Hours(1));
    EXPECT_THAT(ranks.Tick(), IsEmpty());
    EXPECT_THAT(ranks.Announce(1), SizeIs(1)) << "and the round goes on";
  }
}

TEST(StepAgreementTest, ARankThatLeavesWhileOthersGoOnIsNamed) {
  Ranks ranks(3);
  ranks.AnnounceAllBut({});
  ranks.agreement().OnMemberLeft(1, ranks.now());
  EXPECT_OK(ranks.agreement().failure()) << "no rank waits for it";
  ranks.Announce(0);
  EXPECT_OK(ranks.agreement().failure()) << "the last may leave as well";
  ranks.Announce(2);
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("step 101 of stream \"train\": rank 1 left the "
                              "job (the last ticket was of step 100) while "
                              "ranks 0, 2 went on; look for loops of different "
                              "lengths"));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(1));
}

TEST(StepAgreementTest, RanksThatLeaveOneAfterTheOtherAreAllNamed) {
  Ranks ranks(4);
  ranks.Announce(0);
  for (int rank : {3, 1}) {
    ranks.agreement().OnMemberLeft(rank, ranks.now());
    EXPECT_OK(ranks.agreement().failure());
  }
  ranks.agreement().OnMemberLeft(2, ranks.now());
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("ranks 1-3 left the job (no ticket was received) "
                              "while rank 0 went on"));
}

TEST(StepAgreementTest, ALeaverWhoseTicketIsThereIsNotMissed) {
  Ranks ranks(2);
  ranks.Announce(1);
  ranks.agreement().OnMemberLeft(1, ranks.now());
  EXPECT_THAT(ranks.Announce(0), SizeIs(1));
  EXPECT_OK(ranks.agreement().failure());
}

TEST(StepAgreementTest, ALeaverThatDidNotVoteIsNamed) {
  Ranks ranks(3, Voting);
  ranks.AnnounceAllBut({});
  ranks.agreement().OnMemberLeft(2, ranks.now());
  EXPECT_OK(ranks.agreement().failure());
  ranks.Vote(0);
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("rank 2 left the job"));
}

TEST(StepAgreementTest, AfterAStopRanksThatGoOnAreTheOutliers) {
  Ranks ranks(3);
  ranks.Announce(0, [](Ticket* ticket) { ticket->stop = "SIGTERM"; });
  ranks.Announce(1);
  EXPECT_EQ(ranks.Announce(2)[0].decision.stop, "rank 0: SIGTERM");
  ranks.agreement().OnMemberLeft(0, ranks.now());
  ranks.agreement().OnMemberLeft(1, ranks.now());
  ranks.Announce(2);
  EXPECT_THAT(
      ranks.agreement().failure(),
      ranks.FailsWith("rank 2 went on although the decision was to stop"));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(2));
}

TEST(StepAgreementTest, TextFromRanksIsCut) {
  Ranks ranks(2);
  ranks.Announce(0, [](Ticket* ticket) {
    ticket->skip = std::string(100000, 's');
    ticket->hook = std::string(100000, 'h');
  });
  EXPECT_THAT(ranks.agreement().last_tickets()[0]->ticket.skip, SizeIs(512));
  EXPECT_THAT(ranks.agreement().last_tickets()[0]->ticket.hook, SizeIs(4096));
  ranks.Announce(1);
  EXPECT_LT(ranks.agreement().failure().message().size(), 4096u);
}

TEST(StepAgreementTest, LongHooksAreShownByWhereTheyDiffer) {
  Ranks ranks(3);
  const std::string common(300, 'x');
  for (int rank : {0, 1, 2}) {
    ranks.Announce(rank, [&](Ticket* ticket) {
      ticket->hook = common + (rank == 0 ? "rank=2" : "rank=4");
    });
  }
  EXPECT_THAT(ranks.agreement().failure(), ranks.FailsWith("rank=2 on rank 0"));
  EXPECT_THAT(ranks.agreement().failure(), ranks.FailsWith("rank=4 on ranks"));
}

TEST(StepAgreementTest, AThousandRanksMakeAShortMessage) {
  Ranks ranks(2000);
  for (int rank = 0; rank < 2000; ++rank) {
    ranks.Announce(rank, [&](Ticket* ticket) {
      if (rank % 2 == 1) ticket->digest = static_cast<uint64_t>(rank);
      ticket->hook = absl::StrCat("hook", rank % 3);
    });
  }
  EXPECT_THAT(ranks.agreement().failure(), ranks.FailsWith(" more"));
  EXPECT_LT(ranks.agreement().failure().message().size(), 4096u);
  EXPECT_LT(ranks.Mismatch().ByteSizeLong(), 4096u);
  EXPECT_THAT(ranks.Outliers(), Not(IsEmpty()));
}

TEST(StepAgreementTest, AFailureIsFinal) {
  Ranks ranks(2, Voting);
  ranks.Announce(0);
  ranks.Announce(1, [](Ticket* ticket) { ticket->digest = 1; });
  const absl::Status failure = ranks.agreement().failure();
  EXPECT_FALSE(failure.ok());
  EXPECT_THAT(ranks.Announce(1), IsEmpty());
  EXPECT_THAT(ranks.Vote(0), IsEmpty());
  EXPECT_THAT(ranks.agreement().OnMemberLeft(0, ranks.now()), IsEmpty());
  ranks.Wait(absl::Hours(1));
  EXPECT_THAT(ranks.Tick(), IsEmpty());
  EXPECT_EQ(ranks.agreement().failure(), failure);
}

TEST(StepAgreementTest, AStreamThatNamesNoPlanBeginsWithTheNewest) {
  Ranks ranks(2);
  for (int version : {2, 3}) {
    Plan next = ranks.agreement().plan();
    next.version = version;
    next.accumulation_steps = version;
    ranks.agreement().NotePlan(next);
  }
  for (int rank : {0, 1}) {
    ranks.Announce(rank, [](Ticket* ticket) {
      ticket->plan_version = 0;
      ticket->window = ticket->micro_batches = 3;
      ticket->weight = 3;
    });
  }
  EXPECT_OK(ranks.agreement().failure());
  EXPECT_EQ(ranks.agreement().plan().version, 3);
}

TEST(StepAgreementTest, ARoundInWhichNoRankHasDataIsNoStep) {
  for (UnevenData uneven : {UnevenData::kRefuse, UnevenData::kWaitForAll}) {
    Ranks ranks(2, [&](Plan* plan) { plan->terms.uneven_data = uneven; });
    StepAgreement::Messages last;
    for (int rank : {0, 1}) {
      last = ranks.Announce(rank, [](Ticket* ticket) {
        ticket->micro_batches = 0;
        ticket->weight = 0;
        ticket->end_of_data = true;
      });
    }
    ASSERT_THAT(last, SizeIs(1));
    EXPECT_TRUE(last[0].decision.without_data);
    EXPECT_THAT(ranks.asked(), ElementsAre(100));
    // Step 100 comes now: of two ranks, the one that goes on is the outlier.
    ranks.Announce(0);
    ranks.Announce(1, [](Ticket* ticket) { ticket->step = 100; });
    EXPECT_THAT(ranks.Outliers(), ElementsAre(0));
  }
}

TEST(StepAgreementTest, WithVotesAMismatchIsNotAboutThem) {
  Ranks ranks(3, Voting);
  ranks.AnnounceAllBut({2});
  ranks.Announce(2, [](Ticket* ticket) { ticket->layout = 7; });
  EXPECT_THAT(ranks.agreement().failure(), ranks.FailsWith("layout"));
  EXPECT_THAT(ranks.agreement().failure().message(),
              AllOf(Not(HasSubstr("nothing came")), Not(HasSubstr("vote"))));
}

TEST(StepAgreementTest, ALeaverWhoseVoteIsMissedIsNamedWithTheOthersMissed) {
  Ranks ranks(3, Voting);
  ranks.AnnounceAllBut({});
  ranks.Vote(0);
  ranks.agreement().OnMemberLeft(1, ranks.now());
  EXPECT_THAT(ranks.agreement().failure(),
              ranks.FailsWith("rank 2 did not vote on it"));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(1));
}

TEST(StepAgreementTest, TextOfRanksIsShownOnOneLineAndInWholeLetters) {
  Ranks ranks(2);
  std::string common;
  for (int i = 0; i < 100; ++i) common += "\xc3\xa9";
  for (const char* text : {"\n", ""}) {
    Ranks two(2);
    for (int rank : {0, 1}) {
      two.Announce(rank, [&](Ticket* ticket) {
        ticket->hook =
            absl::StrCat(text, text[0] == 0 ? "x" : "", common, rank, "\n");
      });
    }
    const std::string message(two.agreement().failure().message());
    EXPECT_THAT(message, AllOf(HasSubstr("..."), Not(HasSubstr("\n")),
                               Not(HasSubstr("...\xa9"))));
  }
  ranks.Announce(0, [](Ticket* ticket) { ticket->skip = "a\nb"; });
  EXPECT_EQ(ranks.Announce(1)[0].decision.reason, "rank 0: a?b");
}

TEST(StepAgreementTest, ADrainingRankEndsTheGenerationForAll) {
  Ranks ranks(3);
  Plan next;
  next.version = 2;
  ranks.PlanNext(next);
  ranks.Announce(0);
  ranks.Announce(1, [](Ticket* ticket) { ticket->drain = "SIGTERM"; });
  const auto messages = ranks.Announce(2);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].decision.regroup, "rank 1 drains: SIGTERM");
  EXPECT_TRUE(messages[0].decision.commit);
  EXPECT_FALSE(messages[0].decision.plan.has_value())
      << "it begins with the next generation";
  EXPECT_THAT(ranks.asked(), IsEmpty());
  // Then all leave, and no rank waits.
  for (int rank : {0, 1, 2}) {
    EXPECT_THAT(ranks.agreement().OnMemberLeft(rank, ranks.now()), IsEmpty());
  }
  EXPECT_OK(ranks.agreement().failure());
  EXPECT_EQ(ranks.agreement().deadline(), absl::InfiniteFuture());
}

TEST(StepAgreementTest, WhoGoesOnAfterARegroupIsNamed) {
  Ranks ranks(2);
  ranks.agreement().RequestRegroup("2 spares wait");
  ranks.AnnounceAllBut({});
  ASSERT_TRUE(ranks.agreement().regrouped());
  ranks.agreement().OnMemberLeft(0, ranks.now());
  ranks.Announce(1);
  EXPECT_THAT(ranks.agreement().failure(),
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("rank 1"), HasSubstr("2 spares wait"),
                             HasSubstr("ignores a decision to regroup"))));
  EXPECT_THAT(ranks.Outliers(), ElementsAre(1));
}

TEST(StepAgreementTest, TheLastDecisionIsRepeatedAfterARegroup) {
  Ranks ranks(2);
  const Ticket ticket = ranks.Honest(1);
  ranks.agreement().RequestRegroup("2 spares wait");
  ranks.AnnounceAllBut({});
  const auto again = ranks.agreement().OnTicket(1, ticket, ranks.now());
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].decision.regroup, "2 spares wait");
}

TEST(StepAgreementTest, ARegroupWaitsForTheEndOfTheWindow) {
  Ranks ranks(2, [](Plan* plan) { plan->terms.sync_each_batch = true; });
  ranks.agreement().RequestRegroup("2 spares wait");
  for (int micro = 0; micro < 4; ++micro) {
    StepAgreement::Messages last;
    for (int rank : {0, 1}) {
      last = ranks.Announce(rank, [micro](Ticket* ticket) {
        ticket->step = 7;
        ticket->micro = micro;
      });
    }
    ASSERT_THAT(last, SizeIs(1));
    EXPECT_EQ(last[0].decision.regroup.empty(), micro < 3) << micro;
  }
}

TEST(StepAgreementTest, NewcomersAreNamedOnceByADecisionThatCommits) {
  Ranks ranks(2);
  ranks.agreement().RequestCatchUp({{"host-b:7", 42, 3}});
  ranks.Announce(0, [](Ticket* ticket) { ticket->skip = "a bad batch"; });
  const auto skipped = ranks.Announce(1);
  ASSERT_THAT(skipped, SizeIs(1));
  EXPECT_THAT(skipped[0].decision.newcomers, IsEmpty());
  const auto named = ranks.AnnounceAllBut({});
  ASSERT_THAT(named, SizeIs(1));
  ASSERT_THAT(named[0].decision.newcomers, SizeIs(1));
  EXPECT_EQ(named[0].decision.newcomers[0].address, "host-b:7");
  EXPECT_EQ(named[0].decision.newcomers[0].secret, 42);
  EXPECT_EQ(named[0].decision.newcomers[0].incarnation, 3);
  const auto after = ranks.AnnounceAllBut({});
  ASSERT_THAT(after, SizeIs(1));
  EXPECT_THAT(after[0].decision.newcomers, IsEmpty());
}

TEST(StepAgreementTest, AStopAndTheLastStepNeedNoRegroup) {
  Ranks stopped(2);
  stopped.agreement().RequestRegroup("2 spares wait");
  stopped.Announce(0, [](Ticket* ticket) { ticket->stop = "a signal"; });
  const auto stop = stopped.Announce(1);
  ASSERT_THAT(stop, SizeIs(1));
  EXPECT_EQ(stop[0].decision.regroup, "");
  EXPECT_NE(stop[0].decision.stop, "");

  Ranks last(2, [](Plan* plan) { plan->terms.max_steps = 101; });
  last.agreement().RequestRegroup("2 spares wait");
  const auto messages = last.AnnounceAllBut({});  // of step 100
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].decision.regroup, "");
}

TEST(StepAgreementTest, EveryNthStepIsSavedByAll) {
  Ranks ranks(2, [](Plan* plan) { plan->terms.checkpoint_every = 3; });
  for (int64_t step = 100; step < 106; ++step) {
    const auto messages = ranks.AnnounceAllBut({});
    ASSERT_THAT(messages, SizeIs(1));
    EXPECT_EQ(messages[0].decision.checkpoint,
              step == 101 || step == 104 ? "checkpoint_every=3" : "")
        << step;
  }
}

TEST(StepAgreementTest, ASkippedStepIsNotSaved) {
  Ranks ranks(2, [](Plan* plan) {
    plan->terms.checkpoint_every = 1;
    plan->terms.commit_vote = true;
  });
  ranks.agreement().RequestCheckpoint("an operator");
  ranks.Announce(0);
  ranks.Announce(1, [](Ticket* ticket) { ticket->checkpoint = "SIGTERM"; });
  ranks.Vote(0, false, "nan");
  const auto skipped = ranks.Vote(1);
  ASSERT_THAT(skipped, SizeIs(1));
  EXPECT_EQ(skipped[0].decision.checkpoint, "");
  // The coordinator's request stays; a rank repeats its own.
  ranks.AnnounceAllBut({});
  ranks.Vote(0);
  EXPECT_EQ(ranks.Vote(1)[0].decision.checkpoint,
            "checkpoint_every=1; an operator");
  ranks.AnnounceAllBut({});
  ranks.Vote(0);
  EXPECT_EQ(ranks.Vote(1)[0].decision.checkpoint, "checkpoint_every=1");
}

TEST(StepAgreementTest, ARankAsksForACheckpointOfAll) {
  Ranks ranks(3);
  ranks.Announce(0);
  ranks.Announce(1, [](Ticket* ticket) {
    ticket->checkpoint = "SIGTERM";
    ticket->drain = "SIGTERM";
  });
  const auto messages = ranks.Announce(2);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].decision.checkpoint, "rank 1 asks: SIGTERM");
  EXPECT_EQ(messages[0].decision.regroup, "rank 1 drains: SIGTERM");
  EXPECT_EQ(messages[0].rank, StepAgreement::Message::kAllRanks);
}

TEST(StepAgreementTest, ACheckpointWaitsForTheEndOfTheWindow) {
  Ranks ranks(2, [](Plan* plan) { plan->terms.sync_each_batch = true; });
  ranks.agreement().RequestCheckpoint("an operator");
  for (int micro = 0; micro < 4; ++micro) {
    StepAgreement::Messages last;
    for (int rank : {0, 1}) {
      last = ranks.Announce(rank, [micro](Ticket* ticket) {
        ticket->step = 7;
        ticket->micro = micro;
      });
    }
    ASSERT_THAT(last, SizeIs(1));
    EXPECT_EQ(last[0].decision.checkpoint, micro < 3 ? "" : "an operator");
  }
}

TEST(StepAgreementTest, ARoundWithoutDataIsNoStepToSave) {
  Ranks ranks(2, [](Plan* plan) {
    plan->terms.uneven_data = UnevenData::kWaitForAll;
    plan->terms.checkpoint_every = 1;
  });
  StepAgreement::Messages last;
  for (int rank : {0, 1}) {
    last = ranks.Announce(rank, [](Ticket* ticket) {
      ticket->micro_batches = 0;
      ticket->weight = 0;
      ticket->end_of_data = true;
    });
  }
  ASSERT_THAT(last, SizeIs(1));
  EXPECT_TRUE(last[0].decision.without_data);
  EXPECT_EQ(last[0].decision.checkpoint, "");
}

// In the order of ranks, whatever the order of votes: 1 + 1e16 - 1e16 is
// another number the other way round.
TEST(StepAgreementTest, ADecisionHasTheSumsOfAllVotes) {
  Ranks ranks(3, Voting);
  const double squares[] = {1, 1e16, -1e16};
  const auto vote = [&](int rank, bool with_sums) {
    schedule::Vote vote;
    vote.round = ranks.agreement().round();
    if (with_sums) vote.sums = GradientSums{squares[rank], rank};
    return ranks.agreement().OnVote(rank, vote, ranks.now());
  };
  for (const auto& order : {std::vector<int>{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    ranks.AnnounceAllBut({});
    StepAgreement::Messages messages;
    for (const int rank : order) messages = vote(rank, true);
    ASSERT_THAT(messages, SizeIs(1));
    const Decision& decision = messages[0].decision;
    ASSERT_TRUE(decision.sums.has_value());
    EXPECT_EQ(decision.sums->sum_of_squares, (1.0 + 1e16) - 1e16);
    EXPECT_EQ(decision.sums->non_finite, 3);
  }
  // A worker of an earlier version sends none.
  ranks.AnnounceAllBut({});
  vote(0, true);
  vote(1, true);
  const StepAgreement::Messages messages = vote(2, false);
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_FALSE(messages[0].decision.sums.has_value());
}

TEST(StepAgreementTest, AVoteWithOtherSumsIsAnotherVote) {
  Ranks ranks(2, Voting);
  ranks.AnnounceAllBut({});
  schedule::Vote vote;
  vote.sums = GradientSums{1, 0};
  ranks.agreement().OnVote(0, vote, ranks.now());
  ranks.agreement().OnVote(0, vote, ranks.now());
  EXPECT_OK(ranks.agreement().failure());
  vote.sums->sum_of_squares = 2;
  ranks.agreement().OnVote(0, vote, ranks.now());
  EXPECT_THAT(ranks.agreement().failure(), ranks.FailsWith("two different"));
}

}  // namespace
}  // namespace coxswain::schedule::step_agreement_test
