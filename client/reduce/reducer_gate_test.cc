// Steps that are announced at a gate and decided there.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "client/reduce/reducer_test_support.h"
#include "schedule/fake_step_gate.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

auto IsRefused(const std::string& text) {
  return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text));
}

// Answers as the test asks; a grant that is held back comes by Grant or Abort.
class ScriptedGate : public schedule::StepGate {
 public:
  absl::Status Announce(const schedule::Ticket& ticket) override {
    log.Add("announce");
    last = ticket;
    if (clock != nullptr) clock->Advance(absl::Seconds(1));
    return announce;
  }
  absl::Status AwaitGrant() override {
    log.Add("grant");
    MutexLock lock(&mutex_);
    changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return granted_ || !aborted_.ok();
    });
    return granted_ ? grant : aborted_;
  }
  absl::StatusOr<schedule::Decision> Decide(
      const schedule::Vote& vote) override {
    log.Add("decide");
    if (clock != nullptr) clock->Advance(absl::Seconds(2));
    votes.push_back(vote);
    return decide;
  }
  void BeginLocal(const schedule::Ticket& ticket) override {
    log.Add("begin local");
    last = ticket;
  }
  void EndLocal() override { log.Add("end local"); }
  void NoteBucket(int bucket) override {
    log.Add(absl::StrCat("bucket ", bucket));
  }
  void NoteExchange(int64_t gradient_bytes, absl::Duration) override {
    exchanged_bytes.push_back(gradient_bytes);
  }
  void Abort(const absl::Status& reason) override {
    MutexLock lock(&mutex_);
    if (aborted_.ok()) aborted_ = reason;
    changed_.NotifyAll();
  }

  void HoldGrant() {
    MutexLock lock(&mutex_);
    granted_ = false;
  }
  void Grant() {
    MutexLock lock(&mutex_);
    granted_ = true;
    changed_.NotifyAll();
  }

  Log log;
  schedule::Ticket last;
  std::vector<schedule::Vote> votes;
  std::vector<int64_t> exchanged_bytes;
  absl::Status announce;
  absl::Status grant;
  absl::StatusOr<schedule::Decision> decide = schedule::Decision();
  FakeClock* clock = nullptr;

 private:
  Mutex mutex_;
  CondVar changed_;
  bool granted_ ABSL_GUARDED_BY(mutex_) = true;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

ReducerOptions At(schedule::StepGate* gate) {
  ReducerOptions options = OneBucketEach();
  options.gate = gate;
  return options;
}

// A reducer of one rank at a scripted gate.
class ReducerGateTest : public testing::Test {
 protected:
  void Make(ReducerOptions options, Communicator* communicator = nullptr) {
    options.gate = &gate_;
    reducer_.reset();
    hook_ = std::make_unique<AverageHook>();
    auto made = Reducer::Create(
        options, Parameters(2), hook_.get(),
        communicator == nullptr ? &communicator_ : communicator);
    ASSERT_OK(made);
    reducer_ = *std::move(made);
  }
  // BeginStep to Finish; the first error.
  absl::Status Exchange() {
    const absl::Status begun = reducer_->BeginStep();
    return begun.ok() ? reducer_->Finish() : begun;
  }

  LoopbackCommunicator communicator_;
  std::unique_ptr<AverageHook> hook_;
  ScriptedGate gate_;
  std::unique_ptr<Reducer> reducer_;
};

TEST_F(ReducerGateTest, IsAskedInThisOrder) {
  Make(OneBucketEach());
  ASSERT_OK(Exchange());
  ASSERT_OK(reducer_->Decide());
  ASSERT_OK(reducer_->Commit());
  EXPECT_THAT(gate_.log.events(), ElementsAre("announce", "grant", "bucket 0",
                                              "bucket 1", "decide"));
}

TEST_F(ReducerGateTest, ALocalStepIsNeitherAnnouncedNorDecidedByOthers) {
  Make(OneBucketEach());
  gate_.decide = absl::InternalError("no round was announced");
  schedule::Ticket ticket;
  ticket.step = 17;
  ASSERT_OK(reducer_->BeginStep(ticket, 1, /*local=*/true));
  EXPECT_EQ(gate_.last.step, 17);
  EXPECT_EQ(gate_.last.hook, "average");
  ASSERT_OK(reducer_->Finish());
  schedule::Vote against;
  against.commit = false;
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                       reducer_->Decide(against));
  EXPECT_TRUE(decision.commit);
  ASSERT_OK(reducer_->Commit());
  EXPECT_THAT(gate_.log.events(),
              ElementsAre("begin local", "bucket 0", "bucket 1", "end local"));
  EXPECT_THAT(gate_.votes, IsEmpty());

  // The next step is one of all ranks again.
  gate_.decide = schedule::Decision();
  ASSERT_OK(Exchange());
  ASSERT_OK(reducer_->Decide());
  ASSERT_OK(reducer_->Commit());
  EXPECT_EQ(gate_.votes.size(), 1u);
}

// Votes do not count at this gate, which commits whatever they are.
TEST_F(ReducerGateTest, AUnanimousVoteAgainstTheStepSkipsItAllTheSame) {
  Make(OneBucketEach());
  schedule::Vote vote;
  vote.commit = false;
  vote.reason = "the average is not finite";
  for (const bool unanimous : {false, true}) {
    ASSERT_OK(Exchange());
    ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                         reducer_->Decide(vote, unanimous));
    EXPECT_EQ(decision.commit, !unanimous);
    EXPECT_EQ(decision.reason, unanimous ? vote.reason : "");
    if (unanimous) {
      EXPECT_THAT(reducer_->Commit(), IsRefused(vote.reason));
      reducer_->Rollback();
    } else {
      ASSERT_OK(reducer_->Commit());
    }
    EXPECT_OK(reducer_->status());
  }
  EXPECT_EQ(hook_->rollbacks(), 1);

  // One for the step changes nothing.
  vote.commit = true;
  gate_.decide->commit = false;
  gate_.decide->reason = "rank 2 saw a NaN";
  ASSERT_OK(Exchange());
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                       reducer_->Decide(vote, /*unanimous=*/true));
  EXPECT_FALSE(decision.commit);
  EXPECT_EQ(decision.reason, "rank 2 saw a NaN");
}

TEST_F(ReducerGateTest, ItNotesTheBytesOfTheGradientsOfEachStep) {
  Make(OneBucketEach());
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(Exchange());
    ASSERT_OK(reducer_->Decide());
    ASSERT_OK(reducer_->Commit());
  }
  // Two parameters of 4 floats.
  EXPECT_THAT(gate_.exchanged_bytes, ElementsAre(32, 32));
  EXPECT_EQ(reducer_->totals().gradient_bytes, 64);
}

TEST_F(ReducerGateTest, TheTicketIsTheCallersWithWhatTheReducerKnows) {
  ReducerOptions options = OneBucketEach();
  options.plan_version = 5;
  Make(options);
  schedule::Ticket ticket;
  ticket.step = 17;
  ticket.micro = 2;
  ticket.micro_batches = 3;
  ticket.window = 4;
  ticket.weight = 3;
  ticket.end_of_data = true;
  ticket.checksum = 99;
  ticket.skip = "a bad batch";
  ASSERT_OK(reducer_->BeginStep(ticket, 4));
  const schedule::Ticket& last = gate_.last;
  EXPECT_EQ(last.step, 17);
  EXPECT_EQ(last.micro, 2);
  EXPECT_EQ(last.micro_batches, 3);
  EXPECT_EQ(last.window, 4);
  EXPECT_EQ(last.weight, 3);
  EXPECT_TRUE(last.end_of_data);
  EXPECT_EQ(last.checksum, 99);
  EXPECT_EQ(last.skip, "a bad batch");
  EXPECT_EQ(last.plan_version, 5);
  EXPECT_EQ(last.hook, "average");
  EXPECT_NE(last.layout, 0u);
}

TEST_F(ReducerGateTest, AStepThatIsBegunByItsWeightAloneIsAnnouncedAsWell) {
  ReducerOptions options = OneBucketEach();
  options.uneven_inputs = true;
  Make(options);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(reducer_->BeginStep(7));
    EXPECT_EQ(gate_.last.step, i);
    EXPECT_EQ(gate_.last.weight, 7);
    EXPECT_EQ(gate_.last.micro_batches, 1);
    ASSERT_OK(reducer_->Finish());
    ASSERT_OK(reducer_->Decide());
    ASSERT_OK(reducer_->Commit());
  }
  ASSERT_OK(reducer_->BeginStep(0));
  EXPECT_EQ(gate_.last.micro_batches, 0);
}

TEST_F(ReducerGateTest, TheLayoutAndWhatWasExchangedAreHashed) {
  ReducerOptions options = OneBucketEach();
  options.statistics = true;
  options.rebuild = false;
  Make(options);
  const auto step = [&](float value) {
    EXPECT_OK(reducer_->BeginStep());
    Fill(*reducer_, 0, value);
    EXPECT_OK(reducer_->MarkReady(0));
    EXPECT_OK(reducer_->Finish());
    EXPECT_OK(reducer_->Decide());
    EXPECT_OK(reducer_->Commit());
    return gate_.last;
  };
  const schedule::Ticket first = step(1);
  const schedule::Ticket second = step(2);
  EXPECT_EQ(second.layout, first.layout);
  EXPECT_NE(second.digest, first.digest);
  ASSERT_OK(reducer_->ChangeBuckets({1 << 10, 1 << 10}));
  EXPECT_NE(step(3).layout, first.layout);

  // Another reducer that does the same is where this one is, until its
  // gradients are others.
  Make(options);
  EXPECT_EQ(step(1).layout, first.layout);
  EXPECT_EQ(step(2.5).digest, second.digest);
  ASSERT_OK(reducer_->ChangeBuckets({1 << 10, 1 << 10}));
  const uint64_t other = step(3).digest;
  Make(options);
  step(1);
  step(2);
  ASSERT_OK(reducer_->ChangeBuckets({1 << 10, 1 << 10}));
  EXPECT_NE(step(3).digest, other);
}

TEST_F(ReducerGateTest, NothingIsStartedBeforeTheGrant) {
  HeldCommunicator network(std::make_unique<LoopbackCommunicator>());
  network.Open();
  ReducerOptions options = OneBucketEach();
  options.verify = true;
  options.uneven_inputs = true;
  Make(options, &network);
  gate_.HoldGrant();
  ASSERT_OK(reducer_->BeginStep());
  for (const int parameter : {1, 0}) ASSERT_OK(reducer_->MarkReady(parameter));
  ASSERT_TRUE(gate_.log.WaitForSize(2));
  EXPECT_THAT(gate_.log.events(), ElementsAre("announce", "grant"));
  EXPECT_THAT(network.launches(), IsEmpty());
  gate_.Grant();
  ASSERT_OK(reducer_->Finish());
  EXPECT_GE(network.launches().size(), 4u);  // agreement, header, buckets
}

TEST_F(ReducerGateTest, OnlyTheThreadThatTrainsWaits) {
  const auto waits = std::make_shared<WaitCount>();
  HeldCommunicator network(std::make_unique<LoopbackCommunicator>());
  network.CountWaitsIn(waits);
  Make(OneBucketEach(), &network);
  ASSERT_OK(reducer_->BeginStep());
  for (const int parameter : {1, 0}) ASSERT_OK(reducer_->MarkReady(parameter));
  ASSERT_TRUE(network.AwaitLaunches(1, kSoon));
  EXPECT_FALSE(waits->any()) << "its backward pass may go on";
  network.Open();
  ASSERT_OK(reducer_->Finish());
  EXPECT_EQ(waits->ended(), 1) << "those of the exchange thread do not count";
}

TEST_F(ReducerGateTest, AnAbortEndsTheWaitForAGrant) {
  Make(OneBucketEach());
  gate_.HoldGrant();
  ASSERT_OK(reducer_->BeginStep());
  ASSERT_TRUE(gate_.log.WaitForSize(2));
  reducer_->Abort(absl::CancelledError("enough"));
  EXPECT_THAT(reducer_->Finish(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
  EXPECT_THAT(hook_->log().events(), IsEmpty());
}

TEST_F(ReducerGateTest, TheEndOfTheReducerDoesNotWaitForAGrant) {
  Make(OneBucketEach());
  gate_.HoldGrant();
  ASSERT_OK(reducer_->BeginStep());
  ASSERT_TRUE(gate_.log.WaitForSize(2));
  reducer_.reset();
  EXPECT_EQ(hook_->rollbacks(), 1);
}

// What a gate refuses: every call of a step, and the error.
struct Refusal {
  absl::Status ScriptedGate::*call;
  std::string text;
};

TEST_F(ReducerGateTest, AnErrorBeforeTheExchangeBreaksTheReducer) {
  for (const Refusal& refusal :
       {Refusal{&ScriptedGate::announce, "rank 0, step 0, announcing it: no"},
        Refusal{&ScriptedGate::grant, "rank 0, step 0, grant: no"}}) {
    LoopbackCommunicator communicator;
    ScriptedGate gate;
    gate.*refusal.call = absl::AbortedError("no");
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(At(&gate), Parameters(1), &hook, &communicator));
    const absl::Status begun = reducer->BeginStep();
    const auto broken =
        StatusIs(absl::StatusCode::kAborted, StartsWith(refusal.text));
    EXPECT_THAT(begun.ok() ? reducer->Finish() : begun, broken);
    EXPECT_THAT(reducer->status(), broken);
    EXPECT_THAT(reducer->BeginStep(), broken);
    EXPECT_THAT(AbortReason(&communicator), HasSubstr(refusal.text));
    EXPECT_THAT(hook.log().events(), IsEmpty());
  }
}

TEST_F(ReducerGateTest, AnErrorInsteadOfADecisionBreaksItAndRollsBack) {
  Make(OneBucketEach());
  gate_.decide = absl::AbortedError("rank 1 did something else");
  ASSERT_OK(Exchange());
  const auto broken =
      StatusIs(absl::StatusCode::kAborted,
               StartsWith("rank 0, step 0, decision: rank 1 did something"));
  EXPECT_THAT(reducer_->Decide(), broken);
  EXPECT_EQ(hook_->rollbacks(), 1);
  EXPECT_THAT(reducer_->Commit(), broken);
  EXPECT_THAT(AbortReason(&communicator_), HasSubstr("something else"));
  reducer_->Rollback();
  EXPECT_EQ(hook_->rollbacks(), 1);
}

TEST_F(ReducerGateTest, AStepIsDecidedOnce) {
  Make(OneBucketEach());
  EXPECT_THAT(reducer_->Decide(), IsRefused("no exchanged step to decide on"));
  ASSERT_OK(Exchange());
  EXPECT_THAT(reducer_->Commit(), IsRefused("call Decide first"));
  gate_.decide->stop = "maintenance";
  schedule::Vote against;
  against.commit = false;
  against.reason = "a bad batch";
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                         reducer_->Decide(against));
    EXPECT_TRUE(decision.commit);
    EXPECT_EQ(decision.stop, "maintenance");
  }
  ASSERT_EQ(gate_.votes.size(), 1u);
  EXPECT_FALSE(gate_.votes[0].commit);
  EXPECT_EQ(gate_.votes[0].reason, "a bad batch");
  ASSERT_OK(reducer_->Commit());
  EXPECT_THAT(reducer_->Decide(), IsRefused("no exchanged step to decide on"));
  ASSERT_OK(Exchange());
  ASSERT_OK(reducer_->Decide());
  EXPECT_EQ(gate_.votes.size(), 2u);
}

TEST_F(ReducerGateTest, WhatAllSkipCannotBeCommitted) {
  Make(OneBucketEach());
  ASSERT_OK(Exchange());
  gate_.decide->commit = false;
  gate_.decide->reason = "rank 2 saw a NaN";
  ASSERT_OK(reducer_->Decide());
  EXPECT_THAT(reducer_->Commit(),
              IsRefused("(rank 2 saw a NaN); roll it back"));
  reducer_->Rollback();
  EXPECT_EQ(hook_->rollbacks(), 1);
  ASSERT_OK(Exchange());
}

TEST_F(ReducerGateTest, ARollbackThatWasNotDecidedBreaksTheReducer) {
  Make(OneBucketEach());
  ASSERT_OK(Exchange());
  reducer_->Rollback();
  EXPECT_THAT(reducer_->status(),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("before all ranks had decided to")));
  EXPECT_EQ(hook_->rollbacks(), 1);
}

TEST_F(ReducerGateTest, ARollbackOfWhatTheOthersCommitBreaksTheReducer) {
  Make(OneBucketEach());
  ASSERT_OK(Exchange());
  ASSERT_OK(reducer_->Decide());
  reducer_->Rollback();
  EXPECT_THAT(reducer_->status(),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("the other ranks commit it")));
}

TEST_F(ReducerGateTest, EmptyStepsAreDecidedOnAndRolledBack) {
  ReducerOptions options = OneBucketEach();
  options.uneven_inputs = true;
  Make(options);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(reducer_->BeginStep(0));
    ASSERT_OK(reducer_->Finish());
    ASSERT_TRUE(reducer_->report().empty);
    ASSERT_OK(reducer_->Decide());
    EXPECT_THAT(reducer_->Commit(), IsRefused("no rank had data"));
    reducer_->Rollback();
    ASSERT_OK(reducer_->status());
  }
  EXPECT_EQ(gate_.votes.size(), 2u);
}

TEST_F(ReducerGateTest, ItsTimeIsCounted) {
  FakeClock clock;
  gate_.clock = &clock;
  ReducerOptions options = OneBucketEach();
  options.clock = &clock;
  Make(options);
  ASSERT_OK(Exchange());
  ASSERT_OK(reducer_->Decide());
  EXPECT_EQ(reducer_->totals().in_gate, absl::Seconds(3));
}

TEST_F(ReducerGateTest, AveragesAreHandedOverAfterTheDecisionOnly) {
  ReducerOptions options = OneBucketEach();
  options.on_average = [this](const Bucket& bucket) {
    gate_.log.Add(absl::StrCat("step with ", bucket.index));
    return absl::OkStatus();
  };
  Make(options);
  ASSERT_OK(Exchange());
  EXPECT_THAT(gate_.log.events(),
              ElementsAre("announce", "grant", "bucket 0", "bucket 1", "decide",
                          "step with 0", "step with 1"));
  schedule::Vote late;
  late.commit = false;
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                       reducer_->Decide(late));
  EXPECT_TRUE(decision.commit);
  ASSERT_EQ(gate_.votes.size(), 1u);
  EXPECT_TRUE(gate_.votes[0].commit);
  ASSERT_OK(reducer_->Commit());
}

TEST_F(ReducerGateTest, NoAverageOfASkippedStepIsHandedOver) {
  int steps = 0;
  ReducerOptions options = OneBucketEach();
  options.on_average = [&steps](const Bucket&) {
    ++steps;
    return absl::OkStatus();
  };
  Make(options);
  gate_.decide->commit = false;
  ASSERT_OK(Exchange());
  EXPECT_EQ(steps, 0);
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, reducer_->Decide());
  EXPECT_FALSE(decision.commit);
  EXPECT_EQ(gate_.votes.size(), 1u);
  reducer_->Rollback();
  gate_.decide->commit = true;
  ASSERT_OK(Exchange());
  EXPECT_EQ(steps, 2);
}

TEST_F(ReducerGateTest, AnErrorBeforeAveragesAreHandedOverBreaksTheReducer) {
  ReducerOptions options = OneBucketEach();
  options.on_average = [](const Bucket&) { return absl::OkStatus(); };
  Make(options);
  gate_.decide = absl::AbortedError("no");
  EXPECT_THAT(Exchange(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("decision: no")));
  EXPECT_EQ(hook_->rollbacks(), 1);
}

TEST(ReducerDecisionTest, WithoutAGateItIsTheVote) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(1), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep());
  ASSERT_OK(reducer->Finish());
  schedule::Vote against;
  against.commit = false;
  against.reason = "because";
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                       reducer->Decide(against));
  EXPECT_FALSE(decision.commit);
  EXPECT_EQ(decision.reason, "because");
  EXPECT_THAT(reducer->Commit(), IsRefused("because"));
  reducer->Rollback();
  ASSERT_OK(reducer->BeginStep());
  ASSERT_OK(reducer->Finish());
  ASSERT_OK(reducer->Commit());
}

TEST(ReducerTicketTest, InvalidDivisorsAreRefused) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ReducerOptions options = OneBucketEach();
  ASSERT_OK_AND_ASSIGN(const auto even, Reducer::Create(options, Parameters(1),
                                                        &hook, &communicator));
  schedule::Ticket ticket;
  for (const double divisor : {-1.0, 0.0, 1.0 / 0.0, 0.0 / 0.0}) {
    EXPECT_THAT(even->BeginStep(ticket, divisor),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("finite and not negative")));
  }
  ticket.weight = 0;
  EXPECT_THAT(even->BeginStep(ticket, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("needs uneven_inputs")));
  options.end_at_first = true;
  EXPECT_THAT(Reducer::Create(options, Parameters(1), &hook, &communicator),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("needs uneven_inputs")));
}

// Ranks at one schedule, each with a reducer that `train` drives.
void Train(schedule::FakeSchedule& schedule, int size,
           const ReducerOptions& options,
           const std::function<void(int, Reducer&, AverageHook&)>& train) {
  OnRanks(size, [&](int rank, Communicator* communicator) {
    ReducerOptions own = options;
    own.gate = schedule.gate(rank);
    AverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(own, Parameters(2), &hook, communicator));
    train(rank, *reducer, hook);
  });
}

void MarkAll(Reducer& reducer, float value) {
  for (const int parameter : {1, 0}) {
    Fill(reducer, parameter, value);
    EXPECT_OK(reducer.MarkReady(parameter));
  }
}

TEST(ReducerScheduleTest, OneRanksVoteSkipsTheStepOnAll) {
  schedule::Plan plan;
  plan.terms.commit_vote = true;
  schedule::FakeSchedule schedule(3, plan);
  Train(schedule, 3, OneBucketEach(),
        [](int rank, Reducer& reducer, AverageHook& hook) {
          for (int step = 0; step < 4; ++step) {
            ASSERT_OK(reducer.BeginStep());
            MarkAll(reducer, 1);
            ASSERT_OK(reducer.Finish());
            schedule::Vote vote;
            vote.commit = rank != 1 || step != 2;
            vote.reason = vote.commit ? "" : "NaN";
            ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                                 reducer.Decide(vote));
            EXPECT_EQ(decision.commit, step != 2);
            if (decision.commit) {
              ASSERT_OK(reducer.Commit());
            } else {
              EXPECT_THAT(decision.reason, HasSubstr("rank 1: NaN"));
              reducer.Rollback();
            }
          }
          EXPECT_OK(reducer.status());
          EXPECT_EQ(hook.step(), 3);
          EXPECT_EQ(hook.rollbacks(), 1);
        });
}

TEST(ReducerScheduleTest, AnAbortedGenerationEndsTheStepOnAll) {
  schedule::FakeSchedule schedule(3);
  schedule.FailAt(1, absl::AbortedError("rank 2 exchanges micro-batch 3 of 4"));
  Train(schedule, 3, OneBucketEach(),
        [](int rank, Reducer& reducer, AverageHook& hook) {
          absl::Status status;
          for (int step = 0; step < 2 && status.ok(); ++step) {
            status = reducer.BeginStep();
            if (status.ok()) status = reducer.Finish();
            if (status.ok()) status = reducer.Decide().status();
            if (status.ok()) status = reducer.Commit();
          }
          EXPECT_THAT(
              status,
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr(absl::StrCat("rank ", rank, ", step 1"))));
          EXPECT_THAT(status.message(), HasSubstr("micro-batch 3 of 4"));
          EXPECT_EQ(hook.step(), 1);
        });
}

// Weights of 1 and 3: with a header the average is 2.5, without it 2.
TEST(ReducerScheduleTest, APlanPutsInTheHeaderAndTakesItOut) {
  schedule::Plan plain;
  plain.version = 1;
  schedule::Plan weighted;
  weighted.version = 2;
  weighted.terms.weighting = schedule::Weighting::kTokens;
  schedule::Plan last = plain;
  last.version = 3;
  schedule::FakeSchedule schedule(2, plain);
  schedule.ChangePlanAt(0, weighted);
  schedule.ChangePlanAt(2, last);
  ReducerOptions options = OneBucketEach();
  options.verify = true;
  FollowPlan(plain, 2, &options);
  Train(schedule, 2, options, [](int rank, Reducer& reducer, AverageHook&) {
    schedule::Ticket ticket;
    ticket.weight = rank == 0 ? 1 : 3;
    std::vector<float> averages;
    for (int step = 0; step < 4; ++step) {
      const int64_t version = reducer.layout_version();
      ASSERT_OK(reducer.BeginStep(ticket, ticket.weight));
      MarkAll(reducer, rank == 0 ? 1 : 3);
      ASSERT_OK(reducer.Finish());
      averages.push_back(Gradient(reducer, 0)[0]);
      ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, reducer.Decide());
      ASSERT_OK(reducer.Commit());
      if (!decision.plan) continue;
      ASSERT_OK(reducer.ChangePlan(*decision.plan));
      if (step > 0) {
        EXPECT_EQ(reducer.layout_version(), version);
      }
    }
    EXPECT_THAT(averages, ElementsAre(2, 2.5, 2.5, 2));
  });
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<int64_t> versions;
    for (const schedule::Ticket& ticket : schedule.tickets(rank)) {
      versions.push_back(ticket.plan_version);
    }
    EXPECT_THAT(versions, ElementsAre(1, 2, 2, 3));
  }
}

TEST(ReducerScheduleTest, APlanIsChangedBetweenStepsOnly) {
  LoopbackCommunicator communicator;
  AverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(OneBucketEach(), Parameters(1), &hook, &communicator));
  ASSERT_OK(reducer->BeginStep());
  EXPECT_THAT(reducer->ChangePlan(schedule::Plan()),
              IsRefused("to change its plan"));
}

TEST(ReducerHeaderTest, DifferentPlansAreNamedOnAllRanks) {
  OnRanks(4, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.uneven_inputs = true;
    options.plan_version = rank == 2 ? 8 : 7;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(2), &hook, communicator));
    ASSERT_OK(reducer->BeginStep());
    MarkAll(*reducer, 1);
    EXPECT_THAT(reducer->Finish(),
                IsRefused("different versions of the plan: 7 on ranks 0, 1, 3, "
                          "8 on rank 2;"));
    EXPECT_THAT(hook.log().events(), IsEmpty());
  });
}

TEST(ReducerHeaderTest, DivisorsAndWeightsGiveTheWeightedMean) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.uneven_inputs = true;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(2), &hook, communicator));
    // Rank 0: 2 micro-batches of gradient 6; rank 1: 1 of 3; both divided by a
    // planned window of 2.
    schedule::Ticket ticket;
    ticket.micro_batches = rank == 0 ? 2 : 1;
    ticket.weight = ticket.micro_batches;
    ticket.end_of_data = rank == 1;
    ASSERT_OK(reducer->BeginStep(ticket, 2));
    MarkAll(*reducer, rank == 0 ? 6 : 1.5);
    ASSERT_OK(reducer->Finish());
    EXPECT_NEAR(Gradient(*reducer, 0)[0], 5, 1e-6);
    EXPECT_EQ(reducer->report().total_weight, 3);
    EXPECT_EQ(reducer->report().ended_ranks, 1);
    EXPECT_EQ(reducer->report().live_ranks, 2);
    ASSERT_OK(reducer->Commit());
  });
}

TEST(ReducerHeaderTest, EndAtFirstEndsForAllWhereOneHasNoData) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = OneBucketEach();
    options.uneven_inputs = true;
    options.end_at_first = true;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(options, Parameters(2), &hook, communicator));
    ASSERT_OK(reducer->BeginStep(2));
    MarkAll(*reducer, 1);
    ASSERT_OK(reducer->Finish());
    EXPECT_FALSE(reducer->report().ended);
    ASSERT_OK(reducer->Commit());
    const size_t exchanged = hook.log().events().size();

    const bool has_data = rank != 1;
    ASSERT_OK(reducer->BeginStep(has_data ? 2 : 0));
    if (has_data) MarkAll(*reducer, 1);
    ASSERT_OK(reducer->Finish());
    EXPECT_TRUE(reducer->report().ended);
    EXPECT_TRUE(reducer->report().empty);
    EXPECT_EQ(reducer->report().ended_ranks, 1);
    EXPECT_EQ(hook.log().events().size(), exchanged);
    EXPECT_THAT(reducer->Commit(), IsRefused("roll it back"));
    reducer->Rollback();
    EXPECT_EQ(hook.step(), 1);
  });
}

TEST(FollowPlanTest, TakesOverThePlansHeaderSettings) {
  ReducerOptions options;
  schedule::Plan plan;
  plan.version = 4;
  FollowPlan(plan, 3, &options);
  EXPECT_FALSE(options.uneven_inputs);
  EXPECT_FALSE(options.end_at_first);
  EXPECT_EQ(options.plan_version, 4);
  plan.terms.uneven_data = schedule::UnevenData::kEndAtFirst;
  FollowPlan(plan, 3, &options);
  EXPECT_TRUE(options.uneven_inputs);
  EXPECT_TRUE(options.end_at_first);
  plan.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  FollowPlan(plan, 3, &options);
  EXPECT_TRUE(options.uneven_inputs);
  EXPECT_FALSE(options.end_at_first);
  plan.terms.on_resize = schedule::OnResize::kKeepGlobalBatch;
  plan.global_micro_batches = 6;
  FollowPlan(plan, 4, &options);
  EXPECT_TRUE(options.uneven_inputs);
}

}  // namespace
}  // namespace coxswain
