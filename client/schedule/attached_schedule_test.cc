#include "client/schedule/attached_schedule.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "schedule/step_gate.h"

namespace coxswain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

schedule::Ticket TicketOf(int64_t step, int64_t plan_version = 0) {
  schedule::Ticket ticket;
  ticket.step = step;
  ticket.plan_version = plan_version;
  return ticket;
}

v1::AttachEvent DecisionEvent(const std::string& stream, int64_t round,
                              const std::string& skip = "") {
  v1::AttachEvent event;
  event.mutable_decision()->set_stream(stream);
  event.mutable_decision()->set_round(round);
  event.mutable_decision()->set_commit(skip.empty());
  event.mutable_decision()->set_reason(skip);
  return event;
}

v1::AttachEvent GrantEvent(const std::string& stream, int64_t round) {
  v1::AttachEvent event;
  event.mutable_grant()->set_stream(stream);
  event.mutable_grant()->set_round(round);
  return event;
}

v1::AttachEvent AttachedEvent(int64_t term, int64_t fallback_epoch) {
  v1::AttachEvent event;
  event.mutable_attached()->set_term(term);
  event.mutable_attached()->set_fallback_epoch(fallback_epoch);
  return event;
}

// On round 0 of "train".
v1::AttachEvent DecisionOfEpoch(int64_t fallback_epoch,
                                const std::string& skip = "") {
  v1::AttachEvent event = DecisionEvent("train", 0, skip);
  event.mutable_decision()->set_fallback_epoch(fallback_epoch);
  return event;
}

// What has been sent, and by which thread.
class Line {
 public:
  bool Send(const v1::AttachRequest& request) {
    MutexLock lock(&mutex_);
    if (broken_) ++lost_;
    if (!broken_) sent_.emplace_back(request, std::this_thread::get_id());
    changed_.NotifyAll();
    return !broken_;
  }
  void SetBroken(bool broken) {
    MutexLock lock(&mutex_);
    broken_ = broken;
  }
  bool WaitForLost(int count) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(
        &mutex_, absl::Seconds(20),
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return lost_ >= count; });
  }
  // The n-th request, from 0; waits for it.
  v1::AttachRequest Request(size_t n) {
    MutexLock lock(&mutex_);
    const bool came = changed_.WaitFor(
        &mutex_, absl::Seconds(20),
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return sent_.size() > n; });
    EXPECT_TRUE(came) << "request " << n << " was not sent";
    return came ? sent_[n].first : v1::AttachRequest();
  }
  std::thread::id Sender(size_t n) {
    MutexLock lock(&mutex_);
    return sent_.size() > n ? sent_[n].second : std::thread::id();
  }
  size_t size() {
    MutexLock lock(&mutex_);
    return sent_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  int lost_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<v1::AttachRequest, std::thread::id>> sent_
      ABSL_GUARDED_BY(mutex_);
};

class AttachedScheduleTest : public ::testing::Test {
 protected:
  AttachedScheduleTest() { plan_.version = 1; }

  void Start(schedule::Enforcement enforcement, bool commit_vote = false) {
    plan_.terms.enforcement = enforcement;
    plan_.terms.commit_vote = commit_vote;
    AttachedSchedule::Options options;
    options.job = "mnist";
    options.plan = plan_;
    options.clock = &clock_;
    options.look_again = look_again_;
    options.traffic = [this] { return traffic_; };
    schedule_ = std::make_unique<AttachedSchedule>(
        options, [this](const v1::AttachRequest& request) {
          return line_.Send(request);
        });
    train_ = GateOf(schedule::kTrainStream);
  }
  schedule::StepGate* GateOf(absl::string_view stream) {
    const auto gate = schedule_->Gate(stream);
    EXPECT_OK(gate);
    return gate.ok() ? *gate : nullptr;
  }
  // Until a call waits.
  void AwaitActivity() {
    for (v1::Heartbeat beat; beat.activity().empty();) {
      schedule_->AddProgress(&beat);
      std::this_thread::yield();
    }
  }

  FakeClock clock_;
  Line line_;
  schedule::Plan plan_;
  absl::Duration look_again_ = absl::Milliseconds(1);
  StepTimings::Traffic traffic_;  // asked for by the thread that trains
  std::unique_ptr<AttachedSchedule> schedule_;
  schedule::StepGate* train_ = nullptr;
};

TEST_F(AttachedScheduleTest, AnAuditedRoundCostsTheCallerNoSend) {
  look_again_ = absl::Hours(1);  // no other thread sends for it
  Start(schedule::Enforcement::kAudit);
  ASSERT_OK(train_->Announce(TicketOf(7)));
  std::thread exchange([this]() { EXPECT_OK(train_->AwaitGrant()); });
  const std::thread::id exchanges = exchange.get_id();
  exchange.join();
  const v1::AttachRequest request = line_.Request(0);
  EXPECT_EQ(request.ticket().stream(), "train");
  EXPECT_EQ(request.ticket().step(), 7);
  EXPECT_EQ(line_.Sender(0), exchanges);
  schedule_->OnEvent(DecisionEvent("train", 0, "rank 1: not finite"));
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  EXPECT_FALSE(decision.commit);
  EXPECT_EQ(decision.reason, "rank 1: not finite");
  EXPECT_EQ(line_.size(), 1u);
}

TEST_F(AttachedScheduleTest, AStrictRoundIsSentByTheCallerAndWaits) {
  look_again_ = absl::Hours(1);
  Start(schedule::Enforcement::kStrict);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  ASSERT_EQ(line_.size(), 1u);
  EXPECT_EQ(line_.Sender(0), std::this_thread::get_id());
  std::atomic<bool> granted{false};
  std::thread exchange([&]() {
    EXPECT_OK(train_->AwaitGrant());
    EXPECT_TRUE(granted);
  });
  AwaitActivity();
  granted = true;
  schedule_->OnEvent(GrantEvent("train", 0));
  exchange.join();
  std::thread coordinator([&]() {
    AwaitActivity();
    schedule_->OnEvent(DecisionEvent("train", 0));
  });
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  coordinator.join();
  EXPECT_TRUE(decision.commit);
}

TEST_F(AttachedScheduleTest, AVoteIsSentByTheCaller) {
  Start(schedule::Enforcement::kAudit, /*commit_vote=*/true);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  line_.Request(0);
  std::thread coordinator([&]() {
    EXPECT_EQ(line_.Request(1).vote().reason(), "not finite");
    schedule_->OnEvent(DecisionEvent("train", 0, "rank 0: not finite"));
  });
  schedule::Vote vote;
  vote.commit = false;
  vote.reason = "not finite";
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide(vote));
  coordinator.join();
  EXPECT_EQ(line_.Sender(1), std::this_thread::get_id());
  EXPECT_FALSE(decision.commit);
}

TEST_F(AttachedScheduleTest, WithoutEnforcementNothingIsSent) {
  Start(schedule::Enforcement::kOff);
  for (int step = 0; step < 3; ++step) {
    ASSERT_OK(train_->Announce(TicketOf(step)));
    ASSERT_OK(train_->AwaitGrant());
    ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
    EXPECT_TRUE(decision.commit);
  }
  EXPECT_EQ(line_.size(), 0u);
}

TEST_F(AttachedScheduleTest, WithoutEnforcementARankDecidesAlone) {
  Start(schedule::Enforcement::kOff);
  schedule::Vote vote;
  vote.commit = false;
  vote.reason = "not finite";
  ASSERT_OK(train_->Announce(TicketOf(0)));
  ASSERT_OK_AND_ASSIGN(schedule::Decision decision, train_->Decide(vote));
  EXPECT_FALSE(decision.commit);
  EXPECT_EQ(decision.reason, "not finite");
  schedule::Ticket ticket = TicketOf(1);
  ticket.skip = "no loss";
  EXPECT_THAT(train_->Announce(ticket),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("enforcement=off")));
  ASSERT_OK(train_->Announce(TicketOf(2)));
  ASSERT_OK_AND_ASSIGN(decision, train_->Decide({}));
  EXPECT_TRUE(decision.commit);
}

TEST_F(AttachedScheduleTest, ABrokenReducerEndsWaits) {
  look_again_ = absl::Hours(1);  // no polling: it must be notified
  Start(schedule::Enforcement::kStrict);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  const absl::Status why = absl::DeadlineExceededError("bucket 3 is stuck");
  std::thread reducer([&]() {
    AwaitActivity();
    train_->Abort(why);
    train_->Abort(absl::InternalError("a consequence"));
  });
  EXPECT_EQ(train_->AwaitGrant(), why);
  reducer.join();
  EXPECT_EQ(train_->Decide({}).status(), why);
}

TEST_F(AttachedScheduleTest, ABrokenConnectionLosesNoRound) {
  Start(schedule::Enforcement::kAudit, /*commit_vote=*/true);
  line_.SetBroken(true);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  ASSERT_TRUE(line_.WaitForLost(1));
  std::thread coordinator([&]() {
    ASSERT_TRUE(line_.WaitForLost(2));
    line_.SetBroken(false);
    schedule_->FollowCoordinator();
    schedule_->AwaitPositionsSent();
    EXPECT_TRUE(line_.Request(0).has_ticket());
    EXPECT_TRUE(line_.Request(1).has_vote());
    schedule_->OnEvent(DecisionEvent("train", 0));
  });
  EXPECT_OK(train_->Decide({}));
  coordinator.join();
}

TEST_F(AttachedScheduleTest, ALostTicketIsSentAgain) {
  Start(schedule::Enforcement::kAudit);
  line_.SetBroken(true);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  ASSERT_TRUE(line_.WaitForLost(1));
  line_.SetBroken(false);
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(line_.Request(0).has_ticket());
}

TEST_F(AttachedScheduleTest, TheEndOfTheGenerationEndsWaits) {
  look_again_ = absl::Hours(1);  // no polling: it must be notified
  Start(schedule::Enforcement::kAudit);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  const absl::Status why =
      absl::AbortedError("rank 1 announced step 8, the others step 7");
  std::thread coordinator([&]() {
    AwaitActivity();
    schedule_->End(why);
  });
  EXPECT_EQ(train_->Decide({}).status(), why);
  coordinator.join();
  EXPECT_EQ(train_->Announce(TicketOf(1)), why);
  EXPECT_EQ(train_->AwaitGrant(), why);
}

TEST_F(AttachedScheduleTest, ADecisionBeforeTheEndCounts) {
  Start(schedule::Enforcement::kAudit);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  schedule_->OnEvent(DecisionEvent("train", 0));
  schedule_->End(absl::AbortedError("it is over"));
  EXPECT_OK(train_->Decide({}));
  EXPECT_THAT(train_->Announce(TicketOf(1)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("it is over")));
}

TEST_F(AttachedScheduleTest, WaitsEndAtTheTimeout) {
  plan_.terms.progress_timeout = absl::Seconds(10);
  Start(schedule::Enforcement::kStrict);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  clock_.Advance(absl::Seconds(39));
  std::thread time([&]() {
    AwaitActivity();
    clock_.Advance(absl::Seconds(1));
  });
  EXPECT_THAT(
      train_->AwaitGrant(),
      StatusIs(
          absl::StatusCode::kDeadlineExceeded,
          AllOf(HasSubstr("waited 40s for the grant on round 0 of 'train'"),
                HasSubstr("`coxswain why mnist`"))));
  time.join();
}

TEST_F(AttachedScheduleTest, APlanLandsWithItsDecision) {
  Start(schedule::Enforcement::kAudit);
  schedule::StepGate* const eval = GateOf("eval");
  ASSERT_OK(train_->Announce(TicketOf(0, 1)));
  line_.Request(0);
  v1::AttachEvent event = DecisionEvent("train", 0);
  v1::Plan& plan = *event.mutable_decision()->mutable_plan();
  plan.set_version(2);
  plan.set_accumulation_steps(8);
  plan.set_compression_start_step(50);
  (*plan.mutable_terms())["enforcement"] = "off";
  schedule_->OnEvent(event);
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  ASSERT_TRUE(decision.plan.has_value());
  EXPECT_EQ(decision.plan->accumulation_steps, 8);
  EXPECT_EQ(decision.plan->compression_start_step, 50);
  EXPECT_EQ(schedule_->plan().version, 2);
  EXPECT_EQ(schedule_->plan().accumulation_steps, 8);
  ASSERT_OK(train_->Announce(TicketOf(1, 2)));
  EXPECT_OK(train_->Decide({}));
  // Another stream follows once its tickets are of that plan.
  ASSERT_OK(eval->Announce(TicketOf(0, 1)));
  EXPECT_EQ(line_.Request(1).ticket().stream(), "eval");
  schedule_->OnEvent(DecisionEvent("eval", 0));
  ASSERT_OK(eval->Decide({}));
  ASSERT_OK(eval->Announce(TicketOf(1, 2)));
  EXPECT_OK(eval->Decide({}));
  EXPECT_EQ(line_.size(), 2u);
}

TEST_F(AttachedScheduleTest, APlanThatCannotBeReadEndsTheStream) {
  Start(schedule::Enforcement::kAudit);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  v1::AttachEvent event = DecisionEvent("train", 1);
  (*event.mutable_decision()->mutable_plan()->mutable_terms())["gravity"] = "1";
  schedule_->OnEvent(event);  // of another round
  std::thread coordinator([&]() {
    AwaitActivity();
    event.mutable_decision()->set_round(0);
    schedule_->OnEvent(event);
  });
  const auto gravity =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gravity"));
  EXPECT_THAT(train_->Decide({}), gravity);
  coordinator.join();
  EXPECT_THAT(train_->Announce(TicketOf(1)), gravity);
}

TEST_F(AttachedScheduleTest, UnexpectedEventsAreIgnored) {
  Start(schedule::Enforcement::kAudit);
  v1::AttachEvent event;
  schedule_->OnEvent(event);
  event.mutable_warning()->set_text("rank 1 is slow");
  schedule_->OnEvent(event);
  schedule_->OnEvent(GrantEvent("unknown", 0));
  schedule_->OnEvent(DecisionEvent("unknown", 0));
  schedule_->OnEvent(GrantEvent("train", -1));
  schedule_->OnEvent(DecisionEvent("train", 0, "before its ticket"));
  ASSERT_OK(train_->Announce(TicketOf(0)));
  schedule_->OnEvent(DecisionEvent("train", 0));
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  EXPECT_TRUE(decision.commit);
}

TEST_F(AttachedScheduleTest, AStopGoesOutOnEveryStream) {
  Start(schedule::Enforcement::kAudit);
  schedule_->RequestStop("a signal");
  schedule_->RequestStop("another one");
  schedule::StepGate* const late = GateOf("late");
  ASSERT_OK(train_->Announce(TicketOf(0)));
  EXPECT_EQ(line_.Request(0).ticket().stop(), "a signal");
  ASSERT_OK(late->Announce(TicketOf(0)));
  EXPECT_EQ(line_.Request(1).ticket().stop(), "a signal");
  v1::AttachEvent event = DecisionEvent("train", 0);
  event.mutable_decision()->set_stop("rank 0: a signal");
  schedule_->OnEvent(event);
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  EXPECT_EQ(decision.stop, "rank 0: a signal");
}

TEST_F(AttachedScheduleTest, StreamsAreNamedAndLimited) {
  Start(schedule::Enforcement::kAudit);
  EXPECT_EQ(GateOf("train"), train_);
  for (const std::string& name :
       {std::string(), std::string(65, 'a'), std::string("a b")}) {
    EXPECT_THAT(schedule_->Gate(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("[A-Za-z0-9._-]")));
  }
  for (int i = 1; i < 64; ++i) GateOf(absl::StrCat("stream-", i));
  EXPECT_THAT(schedule_->Gate("one-more"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("'one-more'"), HasSubstr("64"))));
  EXPECT_EQ(GateOf("train"), train_);
}

TEST_F(AttachedScheduleTest, ProgressReportsWhatIsDone) {
  Start(schedule::Enforcement::kAudit);
  v1::Heartbeat beat;
  schedule_->AddProgress(&beat);
  EXPECT_EQ(beat.bucket(), -1);
  EXPECT_EQ(beat.activity(), "");
  schedule_->NoteMicroBatch();
  schedule_->NoteMicroBatch();
  ASSERT_OK(train_->Announce(TicketOf(0)));
  train_->NoteBucket(3);
  std::thread coordinator([&]() {
    AwaitActivity();
    schedule_->AddProgress(&beat);
    schedule_->OnEvent(DecisionEvent("train", 0));
  });
  ASSERT_OK(train_->Decide({}));
  coordinator.join();
  EXPECT_EQ(beat.micro_batches(), 2);
  EXPECT_EQ(beat.rounds(), 1);
  EXPECT_EQ(beat.bucket(), 3);
  EXPECT_EQ(beat.activity(), "waiting for the decision on round 0 of 'train'");
  v1::Heartbeat later;
  schedule_->AddProgress(&later);
  EXPECT_EQ(later.activity(), "");
}

TEST_F(AttachedScheduleTest, StepsThatWereCommittedAreProgress) {
  Start(schedule::Enforcement::kAudit);
  const auto done = [this] {
    v1::Heartbeat beat;
    schedule_->AddProgress(&beat);
    return beat.step();
  };
  EXPECT_EQ(done(), 0);
  ASSERT_OK(train_->Announce(TicketOf(41)));
  schedule_->OnEvent(DecisionEvent("train", 0));
  EXPECT_EQ(done(), 0);
  ASSERT_OK(train_->Decide({}));
  EXPECT_EQ(done(), 42);
  // The first of two exchanges of one step.
  schedule::Ticket half = TicketOf(42);
  half.window = 2;
  ASSERT_OK(train_->Announce(half));
  schedule_->OnEvent(DecisionEvent("train", 1));
  ASSERT_OK(train_->Decide({}));
  EXPECT_EQ(done(), 42);
  half.micro = 1;
  ASSERT_OK(train_->Announce(half));
  schedule_->OnEvent(DecisionEvent("train", 2));
  ASSERT_OK(train_->Decide({}));
  EXPECT_EQ(done(), 43);
  // One that all skip.
  ASSERT_OK(train_->Announce(TicketOf(43)));
  schedule_->OnEvent(DecisionEvent("train", 3, "an infinity"));
  ASSERT_OK(train_->Decide({}));
  EXPECT_EQ(done(), 43);
  // The program's own word counts.
  v1::Heartbeat beat;
  beat.set_step(7);
  schedule_->AddProgress(&beat);
  EXPECT_EQ(beat.step(), 7);
}

TEST_F(AttachedScheduleTest, ALocalStepIsProgressOfWhichNothingIsSent) {
  Start(schedule::Enforcement::kStrict);
  for (int step = 41; step < 43; ++step) {
    train_->BeginLocal(TicketOf(step));
    clock_.Advance(absl::Seconds(5));
    train_->NoteExchange(/*gradient_bytes=*/0, absl::Seconds(2));
    train_->EndLocal();
  }
  v1::Heartbeat beat;
  schedule_->AddProgress(&beat);
  EXPECT_EQ(beat.step(), 43);
  EXPECT_EQ(beat.steps_size(), 2);
  EXPECT_EQ(beat.rounds(), 0);
  EXPECT_EQ(line_.size(), 0u);
  // The next round is the first one.
  ASSERT_OK(train_->Announce(TicketOf(43)));
  EXPECT_EQ(line_.Request(0).ticket().round(), 0);
  EXPECT_EQ(line_.Request(0).ticket().step(), 43);
}

TEST_F(AttachedScheduleTest, AStepIsTimedFromItsGateAndItsReducer) {
  Start(schedule::Enforcement::kOff);
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(train_->Announce(TicketOf(step)));
    ASSERT_OK(train_->AwaitGrant());
    clock_.Advance(absl::Seconds(5));
    train_->NoteExchange(/*gradient_bytes=*/0, absl::Seconds(2));
    ASSERT_OK(train_->Decide({}));
  }
  v1::Heartbeat beat;
  schedule_->AddProgress(&beat);
  ASSERT_EQ(beat.steps_size(), 2);
  EXPECT_EQ(beat.steps(1).step(), 1);
  EXPECT_DOUBLE_EQ(beat.steps(1).compute(), 3);
  EXPECT_DOUBLE_EQ(beat.steps(1).exchange(), 2);
  EXPECT_DOUBLE_EQ(beat.steps(1).wait(), 0);
  v1::Heartbeat later;
  schedule_->AddProgress(&later);
  EXPECT_EQ(later.steps_size(), 0);
}

TEST_F(AttachedScheduleTest, ReportsWhatEachStepHasMoved) {
  Start(schedule::Enforcement::kOff);
  traffic_ = {1000, 2000};  // before the first step
  schedule::StepGate* const other = GateOf("other");
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(train_->Announce(TicketOf(step)));
    ASSERT_OK(train_->AwaitGrant());
    traffic_.payload_bytes += 20 + step;
    traffic_.wire_bytes += 30 + step;
    train_->NoteExchange(/*gradient_bytes=*/400 + step, absl::Seconds(2));
    ASSERT_OK(train_->Decide({}));
    // Counts in the sum, and is no step of the training.
    other->NoteExchange(/*gradient_bytes=*/7, absl::ZeroDuration());
  }
  v1::Heartbeat beat;
  schedule_->AddProgress(&beat);
  EXPECT_EQ(beat.gradient_bytes(), 400 + 401 + 2 * 7);
  ASSERT_EQ(beat.steps_size(), 2);
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(beat.steps(step).payload_bytes(), 20 + step);
    EXPECT_EQ(beat.steps(step).wire_bytes(), 30 + step);
  }
}

TEST_F(AttachedScheduleTest, CallsOutOfOrderAreErrors) {
  Start(schedule::Enforcement::kStrict);
  EXPECT_THAT(train_->AwaitGrant(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("before it was announced")));
  EXPECT_THAT(train_->Decide({}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not announced")));
}

// A coordinator that was restarted knows by it what to make of the ticket.
TEST_F(AttachedScheduleTest, SendsItsPositionsBeforeItsTicketsAfterEachAttach) {
  Start(schedule::Enforcement::kStrict);
  GateOf("silent");
  schedule::StepGate* eval = GateOf("eval");
  for (schedule::StepGate* gate : {train_, eval}) {
    ASSERT_OK(gate->Announce(TicketOf(0)));
    schedule_->OnEvent(DecisionEvent(gate == eval ? "eval" : "train", 0));
    ASSERT_OK(gate->Decide({}));
  }
  ASSERT_OK(train_->Announce(TicketOf(1)));
  ASSERT_EQ(line_.size(), 3u);
  schedule_->FollowCoordinator();
  schedule_->AwaitPositionsSent();
  EXPECT_GE(line_.size(), 5u) << "the session is to wait for them";
  EXPECT_EQ(line_.Request(3).position().last().stream(), "eval");
  EXPECT_EQ(line_.Request(4).position().last().stream(), "train");
  EXPECT_EQ(line_.Request(4).position().last().round(), 0);
  EXPECT_EQ(line_.Request(5).ticket().round(), 1);
}

TEST_F(AttachedScheduleTest, WithoutADecisionThereIsNoPosition) {
  Start(schedule::Enforcement::kStrict);
  ASSERT_OK(train_->Announce(TicketOf(0)));
  schedule_->FollowCoordinator();
  schedule_->AwaitPositionsSent();
  EXPECT_TRUE(line_.Request(1).has_ticket());
}

// Another rank has reported the epoch: what the coordinator had made before
// does not count for this one either.
TEST_F(AttachedScheduleTest, ADecisionOfBeforeTheCoordinatorsEpochIsDropped) {
  Start(schedule::Enforcement::kAudit);
  EXPECT_TRUE(schedule_->OnEvent(AttachedEvent(/*term=*/1, 2)));
  ASSERT_OK(train_->Announce(TicketOf(0)));
  ASSERT_OK(train_->AwaitGrant());
  EXPECT_FALSE(schedule_->OnEvent(DecisionOfEpoch(1, "of before")));
  EXPECT_FALSE(schedule_->OnFallbackEvent(DecisionOfEpoch(2)))
      << "it is not followed";
  EXPECT_TRUE(schedule_->OnEvent(DecisionOfEpoch(2)));
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  EXPECT_TRUE(decision.commit);
}

// One comparison drops decisions of all leaders that are earlier.
TEST_F(AttachedScheduleTest, ADecisionOfAnEarlierEpochIsDropped) {
  Start(schedule::Enforcement::kAudit);
  const auto to_nobody = [](const v1::AttachRequest&) { return true; };
  schedule_->OnEvent(AttachedEvent(/*term=*/1, 0));
  ASSERT_OK(train_->Announce(TicketOf(0)));
  ASSERT_OK(train_->AwaitGrant());
  // The coordinator's own, from before the fallback coordinator's first epoch.
  schedule_->FollowFallback(to_nobody, {1, 0});
  schedule_->FollowCoordinator();
  EXPECT_FALSE(schedule_->OnEvent(DecisionOfEpoch(0, "early")));
  // A coordinator that was restarted, and has no report yet.
  schedule_->OnEvent(AttachedEvent(/*term=*/2, 0));
  EXPECT_FALSE(schedule_->OnEvent(DecisionOfEpoch(0, "early")));
  // The fallback coordinator's first epoch, in its second.
  schedule_->FollowFallback(to_nobody, {2, 0});
  EXPECT_FALSE(schedule_->OnFallbackEvent(DecisionOfEpoch(1, "early")));
  // Its second, once a coordinator knows of that.
  schedule_->FollowCoordinator();
  schedule_->OnEvent(AttachedEvent(/*term=*/2, 2));
  schedule_->FollowFallback(to_nobody, {2, 0});
  EXPECT_FALSE(schedule_->OnFallbackEvent(DecisionOfEpoch(2, "early")));
  // Of a coordinator of an earlier term.
  schedule_->FollowCoordinator();
  schedule_->OnEvent(AttachedEvent(/*term=*/1, 2));
  EXPECT_FALSE(schedule_->OnEvent(DecisionOfEpoch(2, "early")));
  // None that cannot be.
  schedule_->OnEvent(AttachedEvent(/*term=*/2, 2));
  EXPECT_FALSE(schedule_->OnEvent(DecisionOfEpoch(-1, "early")));
  EXPECT_FALSE(schedule_->OnEvent(
      DecisionOfEpoch(schedule::Epoch::kMaxFallback + 1, "early")));
  EXPECT_TRUE(schedule_->OnEvent(DecisionOfEpoch(2)));
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  EXPECT_TRUE(decision.commit);
}

TEST_F(AttachedScheduleTest, ACoordinatorThatSendsNoTermIsFollowed) {
  Start(schedule::Enforcement::kAudit);
  schedule_->OnEvent(AttachedEvent(/*term=*/3, 0));
  ASSERT_OK(train_->Announce(TicketOf(0)));
  ASSERT_OK(train_->AwaitGrant());
  schedule_->OnEvent(AttachedEvent(/*term=*/0, 0));
  EXPECT_TRUE(schedule_->OnEvent(DecisionOfEpoch(0)));
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  EXPECT_TRUE(decision.commit);
}

// A coordinator that does not know of the epoch that this rank knows of would
// wait in vain for it to follow.
TEST_F(AttachedScheduleTest, ReportsTheHighestFallbackEpochThatItKnows) {
  Start(schedule::Enforcement::kStrict);
  schedule_->OnEvent(AttachedEvent(/*term=*/1, 3));
  schedule_->FollowCoordinator();
  EXPECT_EQ(line_.Request(0).fallback_report().fallback_epoch(), 3);
  schedule_->OnEvent(AttachedEvent(/*term=*/2, 0));
  schedule_->FollowCoordinator();
  EXPECT_EQ(line_.Request(1).fallback_report().fallback_epoch(), 3);
  v1::LeaveRequest leave;
  schedule_->AddFinalState(&leave);
  EXPECT_EQ(leave.fallback_epoch(), 3);
}

TEST_F(AttachedScheduleTest, ADrainGoesOutWithTrainOnly) {
  Start(schedule::Enforcement::kStrict);
  schedule_->RequestDrain("SIGTERM");
  ASSERT_OK(GateOf("eval")->Announce(TicketOf(0)));
  ASSERT_OK(train_->Announce(TicketOf(0)));
  EXPECT_EQ(line_.Request(0).ticket().drain(), "");
  EXPECT_EQ(line_.Request(1).ticket().drain(), "SIGTERM");
  v1::AttachEvent event = DecisionEvent("train", 0);
  event.mutable_decision()->set_regroup("rank 0 drains: SIGTERM");
  schedule_->OnEvent(event);
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  EXPECT_EQ(decision.regroup, "rank 0 drains: SIGTERM");
  EXPECT_THAT(train_->Announce(TicketOf(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0 drains")));
}

TEST_F(AttachedScheduleTest, ADrainReachesAStreamThatIsMadeLater) {
  Start(schedule::Enforcement::kStrict);
  auto other = std::make_unique<AttachedSchedule>(
      AttachedSchedule::Options(),
      [this](const v1::AttachRequest& request) { return line_.Send(request); });
  other->RequestDrain("SIGTERM");
  ASSERT_OK_AND_ASSIGN(schedule::StepGate* const gate,
                       other->Gate(schedule::kTrainStream));
  ASSERT_OK(gate->Announce(TicketOf(0)));
  EXPECT_OK(gate->AwaitGrant());
  EXPECT_EQ(line_.Request(0).ticket().drain(), "SIGTERM");
}

TEST_F(AttachedScheduleTest, ACheckpointIsAskedForInTrainOnly) {
  Start(schedule::Enforcement::kStrict);
  schedule_->RequestCheckpoint("SIGTERM");
  ASSERT_OK(GateOf("eval")->Announce(TicketOf(0)));
  ASSERT_OK(train_->Announce(TicketOf(0)));
  EXPECT_EQ(line_.Request(0).ticket().checkpoint(), "");
  EXPECT_EQ(line_.Request(1).ticket().checkpoint(), "SIGTERM");
  v1::AttachEvent event = DecisionEvent("train", 0);
  event.mutable_decision()->set_checkpoint("rank 0 asks: SIGTERM");
  schedule_->OnEvent(event);
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, train_->Decide({}));
  EXPECT_EQ(decision.checkpoint, "rank 0 asks: SIGTERM");
}

TEST_F(AttachedScheduleTest, ACheckpointReachesAStreamThatIsMadeLater) {
  Start(schedule::Enforcement::kStrict);
  auto other = std::make_unique<AttachedSchedule>(
      AttachedSchedule::Options(),
      [this](const v1::AttachRequest& request) { return line_.Send(request); });
  other->RequestCheckpoint("SIGTERM");
  ASSERT_OK_AND_ASSIGN(schedule::StepGate* const gate,
                       other->Gate(schedule::kTrainStream));
  ASSERT_OK(gate->Announce(TicketOf(0)));
  EXPECT_OK(gate->AwaitGrant());
  EXPECT_EQ(line_.Request(0).ticket().checkpoint(), "SIGTERM");
}

}  // namespace
}  // namespace coxswain
