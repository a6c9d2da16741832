#include "server/schedule/schedule_registry.h"

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "proto/types.pb.h"
#include "server/membership/flat_event.h"
#include "server/schedule/position_record.h"
#include "server/state/direct_writer.h"
#include "server/state/memory_state_store.h"
#include "server/state/quarantine.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using Kind = FlatEvent::Kind;

constexpr char kTrain[] = "train";

class CountingRandom : public RandomSource {
 public:
  uint64_t Next() override { return ++count_; }

 private:
  uint64_t count_ = 0;
};

// One process, and what it received.
struct Worker {
  uint64_t incarnation = 0;
  absl::StatusOr<JoinResult> joined = absl::UnknownError("not joined");
  uint64_t attachment = 0;
  AttachedRank attached;
  std::vector<FlatEvent> events;

  Fence fence() const {
    return {joined->cluster_id,
            joined->term,
            "job",
            joined->generation,
            Incarnation(incarnation),
            1};
  }
  std::vector<FlatEvent> EventsOf(Kind kind) const {
    std::vector<FlatEvent> of_kind;
    for (const FlatEvent& event : events) {
      if (event.kind == kind) of_kind.push_back(event);
    }
    return of_kind;
  }
};

schedule::Ticket MakeTicket(int64_t round, int64_t plan_version = 1) {
  schedule::Ticket ticket;
  ticket.round = round;
  ticket.step = round;
  ticket.micro_batches = 1;
  ticket.window = 1;
  ticket.weight = 1;
  ticket.plan_version = plan_version;
  ticket.hook = "allreduce";
  return ticket;
}

// A store that is slow, when a test wants it.
class SlowWriter : public DirectWriter {
 public:
  using DirectWriter::DirectWriter;
  void Write(StateBatch batch, Done done) override {
    if (!held_) return DirectWriter::Write(std::move(batch), std::move(done));
    waiting_.emplace_back(std::move(batch), std::move(done));
  }
  void Hold() { held_ = true; }
  size_t waiting() const { return waiting_.size(); }
  void Release() {
    held_ = false;
    for (auto& [batch, done] : std::exchange(waiting_, {})) {
      DirectWriter::Write(std::move(batch), std::move(done));
    }
  }

 private:
  bool held_ = false;
  std::deque<std::pair<StateBatch, Done>> waiting_;
};

class ScheduleRegistryTest : public testing::Test {
 protected:
  void SetUp() override { Open(ScheduleLimits()); }

  void Open(const ScheduleLimits& limits) {
    ASSERT_OK_AND_ASSIGN(plans_, PlanStore::Load(PlanOptions(), &store_));
    ASSERT_OK_AND_ASSIGN(
        membership_,
        Membership::Open(MembershipOptions(),
                         {&clock_, &random_, &store_, plans_.get()}));
    schedule_ = std::make_unique<ScheduleRegistry>(
        limits, ScheduleRegistry::Dependencies{&clock_, membership_.get(),
                                               plans_.get(), &store_});
    membership_->AddObserver(plans_.get());
    membership_->AddObserver(schedule_.get());
    ASSERT_OK(membership_->Resume());
  }
  // The coordinator dies, and is started again.
  void Restart() {
    schedule_.reset();
    membership_.reset();
    plans_.reset();
    Open(ScheduleLimits());
  }
  // As its stream does it; the attachment stays.
  void Reattach(Worker* worker) {
    worker->events.clear();
    const auto attachment = membership_->Attach(
        worker->fence(), [worker](const AttachEvent& event) {
          worker->events.emplace_back(event);
        });
    EXPECT_OK(attachment);
    worker->attachment = attachment.value_or(0);
    TakeAttachedRank(worker);
  }
  void TakeAttachedRank(Worker* worker) {
    worker->attached = membership_->AttachedRankOf(worker->attachment)
                           .value_or(AttachedRank());
    schedule_->OnAttached(worker->attached);
  }
  absl::Status SendFinalState(const Worker& worker,
                              const schedule::Decision& last,
                              int64_t fallback_epoch = 0) {
    ScheduleRegistry::FinalState state;
    state.rank = worker.joined->rank;
    state.fallback_epoch = fallback_epoch;
    state.positions.push_back({std::string(kTrain), last});
    return schedule_->OnLeaving("job", worker.joined->generation, state);
  }
  void ReportPosition(const Worker& worker, const schedule::Decision& last) {
    EXPECT_OK(schedule_->OnPosition(worker.attached, kTrain, last));
  }
  static schedule::Decision Received(int64_t round) {
    schedule::Decision decision;
    decision.round = round;
    return decision;
  }
  std::vector<std::string> Tables() {
    return store_.Tables("schedule/").value_or(std::vector<std::string>());
  }

  using Team = std::vector<Worker*>;
  using Terms = std::map<std::string, std::string>;

  Worker* Join(int world, int slot, const Terms& terms,
               const std::string& job) {
    Worker& worker = workers_.emplace_back();
    worker.incarnation = ++incarnations_;
    JoinRequest request;
    request.job = job;
    request.identity = {"host-a", slot};
    request.incarnation = Incarnation(worker.incarnation);
    request.host = "host-a";
    request.address = "host-a:1";
    request.manifest.world_size = world;
    request.manifest.hook = "allreduce";
    request.manifest.accumulation_steps = accumulation_;
    request.manifest.terms = terms;
    request.manifest.mesh = mesh_;
    request.timeout = absl::Seconds(30);
    membership_->Join(request,
                      [&worker](auto result) { worker.joined = result; });
    return &worker;
  }
  // A running job whose workers are attached, by rank.
  Team Run(int world, const Terms& terms = {}, const std::string& job = "job") {
    Team team;
    for (int slot = 0; slot < world; ++slot) {
      team.push_back(Join(world, slot, terms, job));
    }
    for (Worker* worker : team) {
      EXPECT_OK(worker->joined);
      if (!worker->joined.ok()) continue;
      Fence fence = worker->fence();
      fence.job = job;
      const auto attachment =
          membership_->Attach(fence, [worker](const AttachEvent& event) {
            worker->events.emplace_back(event);
          });
      EXPECT_OK(attachment);
      worker->attachment = attachment.value_or(0);
      TakeAttachedRank(worker);
    }
    return team;
  }
  void Announce(const Team& team, int64_t round, int64_t plan_version = 1) {
    for (const Worker* worker : team) {
      EXPECT_OK(schedule_->OnTicket(worker->attached, kTrain,
                                    MakeTicket(round, plan_version)));
    }
  }
  void Beat(const Worker& worker, int64_t step, int64_t sequence) {
    Progress progress;
    progress.step = step;
    progress.collective_sequence = sequence;
    EXPECT_OK(membership_->Heartbeat(worker.attachment, progress));
  }
  // Its heartbeat, with its place in the pipeline's step.
  void BeatAt(const Worker& worker, int action, absl::Duration in_it,
              int64_t step = 0, int micro_batches = 1) {
    Progress progress;
    progress.pipeline =
        PipelinePlace{step, action, micro_batches, in_it, {{0, 0.2, 0, 0, 0}}};
    EXPECT_OK(membership_->Heartbeat(worker.attachment, progress));
  }
  // As the coordinator does it.
  void Tick() {
    schedule_->Tick(clock_.Now());
    membership_->Tick();
  }
  JobDescription Description() {
    const auto jobs = membership_->Describe("job");
    return jobs.ok() ? jobs->front() : JobDescription();
  }

  FakeClock clock_;
  CountingRandom random_;
  MemoryStateStore memory_;
  SlowWriter store_{&memory_};
  std::unique_ptr<PlanStore> plans_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<ScheduleRegistry> schedule_;
  std::deque<Worker> workers_;  // addresses stay
  uint64_t incarnations_ = 0;
  // Of jobs that are made.
  std::string mesh_;
  int accumulation_ = 1;
};

TEST_F(ScheduleRegistryTest, AgreeingTicketsAreDecidedForAll) {
  const Team team = Run(3);
  Announce({team[0], team[1]}, 0);
  EXPECT_THAT(team[0]->events, IsEmpty());
  Announce({team[2]}, 0);
  Announce(team, 1);
  for (const Worker* worker : team) {
    ASSERT_THAT(worker->events, SizeIs(2));
    for (int64_t round : {0, 1}) {
      const FlatEvent& event = worker->events[static_cast<size_t>(round)];
      EXPECT_EQ(event.kind, Kind::kDecision);
      EXPECT_EQ(event.stream, kTrain);
      EXPECT_EQ(event.round, round);
      EXPECT_TRUE(event.decision.commit);
      EXPECT_FALSE(event.decision.plan.has_value());
    }
  }
}

TEST_F(ScheduleRegistryTest, StrictWithVotesGrantsFirst) {
  const Team team =
      Run(2, {{"enforcement", "strict"}, {"commit_vote", "true"}});
  Announce(team, 0);
  for (const Worker* worker : team) {
    EXPECT_THAT(worker->EventsOf(Kind::kGrant), SizeIs(1));
    EXPECT_THAT(worker->EventsOf(Kind::kDecision), IsEmpty());
  }
  schedule::Vote vote;
  EXPECT_OK(schedule_->OnVote(team[0]->attached, kTrain, vote));
  vote.commit = false;
  vote.reason = "loss is nan";
  EXPECT_OK(schedule_->OnVote(team[1]->attached, kTrain, vote));
  for (const Worker* worker : team) {
    const auto decisions = worker->EventsOf(Kind::kDecision);
    ASSERT_THAT(decisions, SizeIs(1));
    EXPECT_FALSE(decisions[0].decision.commit);
    EXPECT_THAT(decisions[0].decision.reason,
                AllOf(HasSubstr("rank 1"), HasSubstr("loss is nan")));
  }
}

TEST_F(ScheduleRegistryTest, ADecisionIsTheGrantWhereThereIsNoVote) {
  const Team team = Run(2, {{"enforcement", "strict"}});
  Announce(team, 0);
  for (const Worker* worker : team) {
    ASSERT_THAT(worker->events, SizeIs(1));
    EXPECT_EQ(worker->events[0].kind, Kind::kDecision);
  }
}

TEST_F(ScheduleRegistryTest, ARepeatedTicketIsAnsweredToItsSenderOnly) {
  const Team team = Run(2);
  Announce(team, 0);
  Announce({team[1]}, 0);
  EXPECT_THAT(team[0]->events, SizeIs(1));
  EXPECT_THAT(team[1]->events, SizeIs(2));
}

TEST_F(ScheduleRegistryTest, AMismatchEndsTheGenerationForAll) {
  const Team team = Run(3);
  Announce({team[0], team[1]}, 0);
  schedule::Ticket other = MakeTicket(0);
  other.hook = "bf16";
  EXPECT_OK(schedule_->OnTicket(team[2]->attached, kTrain, other));
  for (const Worker* worker : team) {
    ASSERT_THAT(worker->events, SizeIs(2));
    const FlatEvent& abort = worker->events[0];
    EXPECT_EQ(abort.kind, Kind::kAbort);
    EXPECT_THAT(abort.reason, AllOf(HasSubstr("rank 2"), HasSubstr("bf16"),
                                    HasSubstr("allreduce")));
    const v1::ErrorDetail detail = DetailOf(abort.status);
    EXPECT_EQ(detail.schedule_mismatch().stream(), kTrain);
    EXPECT_THAT(detail.schedule_mismatch().odd_ranks(), ElementsAre(2));
    EXPECT_EQ(worker->events[1].kind, Kind::kClosed);
  }
  EXPECT_EQ(Description().state, JobState::kEnded);
  // What comes late is dropped.
  EXPECT_OK(schedule_->OnTicket(team[0]->attached, kTrain, MakeTicket(1)));
  EXPECT_THAT(team[0]->events, SizeIs(2));
}

TEST_F(ScheduleRegistryTest, AProposedPlanLandsOnItsStepForAll) {
  const Team team = Run(2);
  Announce(team, 0);
  schedule::Plan plan = plans_->Get("job")->current;
  plan.hook = "bf16";
  plan.at_step = 3;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  Announce(team, 1);
  Announce(team, 2);
  for (const Worker* worker : team) {
    ASSERT_THAT(worker->events, SizeIs(3));
    EXPECT_FALSE(worker->events[1].decision.plan.has_value());
    ASSERT_TRUE(worker->events[2].decision.plan.has_value());
    EXPECT_EQ(worker->events[2].decision.plan->hook, "bf16");
    EXPECT_EQ(worker->events[2].decision.plan->version, 2);
    EXPECT_EQ(worker->events[2].decision.plan->at_step, 3);
  }
  EXPECT_EQ(Description().plan.version, 2);
  EXPECT_EQ(plans_->Get("job")->current.version, 2);
  // Who does not follow is named.
  Announce({team[0]}, 3, 2);
  Announce({team[1]}, 3, 1);
  EXPECT_THAT(Description().last_event, HasSubstr("plan"));
  EXPECT_EQ(Description().state, JobState::kEnded);
}

TEST_F(ScheduleRegistryTest, TheLogHasEarlierNamesBesideTheNewOnes) {
  const Team team = Run(2);
  schedule::Plan plan = plans_->Get("job")->current;
  plan.accumulation_steps = 4;
  plan.at_step = 1;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  testing::internal::CaptureStderr();
  Announce(team, 0);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(" plan_in_force "),
                    HasSubstr(" accumulation_steps=4 accumulation=4")));
}

TEST_F(ScheduleRegistryTest, APlanThatCannotBeStoredComesLater) {
  const Team team = Run(2);
  schedule::Plan plan = plans_->Get("job")->current;
  plan.hook = "bf16";
  plan.at_step = schedule::Plan::kAtNextStep;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  memory_.FailWrites(absl::UnavailableError("disk full"));
  Announce(team, 0);
  EXPECT_FALSE(team[0]->events.back().decision.plan.has_value());
  EXPECT_EQ(Description().plan.version, 1);
  memory_.FailWrites(absl::OkStatus());
  Announce(team, 1);
  ASSERT_TRUE(team[0]->events.back().decision.plan.has_value());
  EXPECT_EQ(team[0]->events.back().decision.plan->at_step, 2);
}

TEST_F(ScheduleRegistryTest, OtherStreamsDoNotTakeAProposalButFollowIt) {
  const Team team = Run(2);
  schedule::Plan plan = plans_->Get("job")->current;
  plan.accumulation_steps = 2;
  plan.at_step = schedule::Plan::kAtNextStep;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  for (const Worker* worker : team) {
    EXPECT_OK(schedule_->OnTicket(worker->attached, "critic", MakeTicket(0)));
  }
  EXPECT_FALSE(team[0]->events.back().decision.plan.has_value());
  Announce(team, 0);
  EXPECT_TRUE(team[0]->events.back().decision.plan.has_value());
  schedule::Ticket changed = MakeTicket(1, 2);
  changed.micro = 1;
  changed.micro_batches = changed.window = 2;
  for (const Worker* worker : team) {
    EXPECT_OK(schedule_->OnTicket(worker->attached, "critic", changed));
  }
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(team[0]->EventsOf(Kind::kDecision), SizeIs(3));
}

// It may have been made before the plan was changed, or after.
TEST_F(ScheduleRegistryTest, AStreamThatBeginsLateBeginsWithEitherPlan) {
  const Team team = Run(2);
  schedule::Plan plan = plans_->Get("job")->current;
  plan.accumulation_steps = 2;
  plan.at_step = schedule::Plan::kAtNextStep;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  Announce(team, 0);
  ASSERT_TRUE(team[0]->events.back().decision.plan.has_value());
  schedule::Ticket changed = MakeTicket(0, 2);
  changed.micro = 1;
  changed.micro_batches = changed.window = 2;
  for (const Worker* worker : team) {
    EXPECT_OK(
        schedule_->OnTicket(worker->attached, "before", MakeTicket(0, 1)));
    EXPECT_OK(schedule_->OnTicket(worker->attached, "after", changed));
  }
  EXPECT_EQ(Description().last_event, "");
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(ScheduleRegistryTest, AStoppedRankOwesNothing) {
  for (const bool by_request : {true, false}) {
    const Team team = Run(
        2, {{"progress_timeout", "5s"}, {"max_steps", by_request ? "0" : "1"}});
    for (const Worker* worker : team) {
      schedule::Ticket ticket = MakeTicket(0);
      ticket.plan_version = worker->joined->plan.version;
      if (by_request) ticket.stop = "time is up";
      EXPECT_OK(schedule_->OnTicket(worker->attached, kTrain, ticket));
    }
    for (int second = 0; second < 20; ++second) {
      clock_.Advance(absl::Seconds(1));
      for (const Worker* worker : team) Beat(*worker, 0, 0);
      Tick();
    }
    EXPECT_EQ(Description().state, JobState::kRunning);
    membership_->AbortGeneration("job", team[0]->attached.generation,
                                 absl::AbortedError("over"));
  }
}

TEST_F(ScheduleRegistryTest, AMissingTicketIsNamedAfterTheTimeout) {
  const Team team = Run(3, {{"progress_timeout", "5s"}});
  Announce(team, 0);
  Announce({team[0], team[1]}, 1);
  for (int second = 0; second < 5; ++second) {
    EXPECT_EQ(Description().state, JobState::kRunning);
    clock_.Advance(absl::Seconds(1));
    // Repetitions are no progress.
    Announce({team[0]}, 1);
    Beat(*team[2], 1, 1);
    Tick();
  }
  EXPECT_EQ(Description().state, JobState::kEnded);
  ASSERT_THAT(team[0]->EventsOf(Kind::kAbort), SizeIs(1));
  EXPECT_THAT(team[0]->EventsOf(Kind::kAbort)[0].reason,
              AllOf(HasSubstr("rank 2"), HasSubstr("step 1")));
}

TEST_F(ScheduleRegistryTest, AnExchangeThatHangsIsFoundByTheHeartbeats) {
  const Team team = Run(2, {{"progress_timeout", "5s"}});
  Announce(team, 0);
  for (int second = 0; second < 6; ++second) {
    EXPECT_EQ(Description().state, JobState::kRunning);
    clock_.Advance(absl::Seconds(1));
    Beat(*team[0], 0, 7);
    Beat(*team[1], 0, 6);
    Tick();
  }
  EXPECT_EQ(Description().state, JobState::kEnded);
  ASSERT_THAT(team[0]->EventsOf(Kind::kAbort), SizeIs(1));
  EXPECT_THAT(team[0]->EventsOf(Kind::kAbort)[0].reason,
              AllOf(HasSubstr("6 on rank 1"), HasSubstr("look at rank 1")));
}

TEST_F(ScheduleRegistryTest, WithWarnAStallIsWarnedOfOnce) {
  const Team team = Run(2, {{"progress_timeout", "5s"}, {"on_stall", "warn"}});
  Announce({team[0]}, 0);
  for (int second = 0; second < 9; ++second) {
    clock_.Advance(absl::Seconds(1));
    Beat(*team[0], 0, 0);
    Beat(*team[1], 0, 0);
    Tick();
  }
  EXPECT_EQ(Description().state, JobState::kRunning);
  ASSERT_THAT(team[0]->events, SizeIs(1));
  EXPECT_EQ(team[0]->events[0].kind, Kind::kWarning);
  EXPECT_THAT(team[0]->events[0].reason, HasSubstr("rank 1"));
  Announce({team[1]}, 0);
  EXPECT_EQ(team[0]->events.back().kind, Kind::kDecision);
}

// pp=2, dp=2: lists 0F0 0SEND_F0 0RECV_B0 0B0, and 1RECV_F0 1F0 1B0 1SEND_B0;
// rank 1 (pp 0, dp 1) does not get done with its first pass.
TEST_F(ScheduleRegistryTest, TheRankThatHoldsUpAPipelineEndsIt) {
  mesh_ = "pp=2,dp=2";
  const Team team = Run(4, {{"progress_timeout", "5s"}, {"pipeline", "1f1b"}});
  for (int second = 1; second <= 4; ++second) {
    clock_.Advance(absl::Seconds(1));
    BeatAt(*team[0], 4, absl::Seconds(second));
    BeatAt(*team[1], 0, absl::Seconds(second));
    BeatAt(*team[2], 4, absl::Seconds(second));
    BeatAt(*team[3], 0, absl::Seconds(second));
    Tick();
  }
  const std::string sentence =
      "stage 0 (rank 1: pp 0, dp 1; host-a/1) has been in 0F0 for 4s (median "
      "200ms); 3 ranks wait for it, 2 of them directly";
  ASSERT_OK_AND_ASSIGN(const WhyReport why, schedule_->Why("job"));
  EXPECT_EQ(why.schedule.findings[0], sentence);
  EXPECT_TRUE(why.schedule.ranks[1].outlier);
  EXPECT_FALSE(why.schedule.ranks[0].outlier);
  EXPECT_EQ(why.schedule.ranks[1].in, "0F0");
  EXPECT_EQ(why.schedule.ranks[3].in, "1RECV_F0");
  EXPECT_THAT(why.schedule.ranks[3].waits_for, ElementsAre(1));
  const auto wait = schedule_->WaitOf(Description());
  ASSERT_TRUE(wait.has_value());
  EXPECT_THAT(wait->ranks, ElementsAre(1));
  EXPECT_EQ(wait->waited, absl::Seconds(4));
  const auto report = schedule_->PipelineOf(Description());
  ASSERT_TRUE(report.has_value());
  EXPECT_THAT(report->findings, ElementsAre(sentence));
  EXPECT_EQ(report->ranks[1].waiters, 3);
  EXPECT_EQ(report->ranks[3].lane, 1);
  EXPECT_THAT(report->lanes, SizeIs(2));
  EXPECT_EQ(report->lanes[0][0].action, "0F0");
  EXPECT_FALSE(report->measured);  // no backward pass is
  EXPECT_EQ(Description().state, JobState::kRunning);
  clock_.Advance(absl::Seconds(1));
  Tick();
  EXPECT_EQ(Description().state, JobState::kEnded);
  ASSERT_THAT(team[0]->EventsOf(Kind::kAbort), SizeIs(1));
  EXPECT_THAT(
      team[0]->EventsOf(Kind::kAbort)[0].reason,
      AllOf(HasSubstr("stage 0 (rank 1: pp 0, dp 1; host-a/1) has been in 0F0"),
            HasSubstr("3 ranks wait for it"), HasSubstr("look at rank 1")));
  EXPECT_FALSE(schedule_->PipelineOf(Description()).has_value());
}

TEST_F(ScheduleRegistryTest, APipelineThatMovesIsNotStalled) {
  mesh_ = "pp=2,dp=1";
  const Team team = Run(
      2,
      {{"progress_timeout", "5s"}, {"pipeline", "1f1b"}, {"on_stall", "warn"}});
  for (int second = 0; second < 30; ++second) {
    clock_.Advance(absl::Seconds(1));
    BeatAt(*team[0], 2, absl::Seconds(second));
    // Each pass takes three seconds.
    BeatAt(*team[1], 1 + second / 3 % 2, absl::Seconds(second % 3));
    Tick();
  }
  EXPECT_THAT(team[0]->events, IsEmpty());
  EXPECT_FALSE(schedule_->WaitOf(Description()).has_value());
  for (int second = 0; second < 6; ++second) {
    clock_.Advance(absl::Seconds(1));
    BeatAt(*team[0], 2, absl::Seconds(30 + second));
    BeatAt(*team[1], 1, absl::Seconds(second));
    Tick();
  }
  ASSERT_THAT(team[0]->events, SizeIs(1));
  EXPECT_EQ(team[0]->events[0].kind, Kind::kWarning);
  EXPECT_THAT(team[0]->events[0].reason, HasSubstr("1F0"));
}

// pp=2, dp=2: the data of dp 1 (ranks 1 and 3) has ended, and that of dp 0 has
// not for longer than the timeout; its steps take four seconds.
TEST_F(ScheduleRegistryTest, RanksWithoutDataHoldUpNobody) {
  mesh_ = "pp=2,dp=2";
  const Team team = Run(4, {{"progress_timeout", "5s"}, {"pipeline", "1f1b"}});
  const auto beat = [&](int64_t step, int seconds) {
    clock_.Advance(absl::Seconds(1));
    const absl::Duration in_it = absl::Seconds(seconds);
    // 0RECV_B0 and 1F0; and the ends of lists.
    BeatAt(*team[0], 2, in_it, step);
    BeatAt(*team[2], 1, in_it, step);
    BeatAt(*team[1], 4, in_it, step);
    BeatAt(*team[3], 4, in_it, step);
    Tick();
  };
  for (int second = 0; second < 40; ++second) {
    beat(second / 4, second % 4);
    ASSERT_EQ(Description().state, JobState::kRunning) << second;
  }
  for (int second = 4; second <= 5; ++second) beat(9, second);  // it hangs
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(team[0]->EventsOf(Kind::kAbort)[0].reason,
              HasSubstr("look at rank 2"));
}

// A window that is as large as that of the plan is explained and drawn,
// whatever the ranks report; and so is none that is too large.
TEST_F(ScheduleRegistryTest, ThePlansScheduleIsDrawnAndMarksAreThoseOfIt) {
  mesh_ = "pp=2,dp=4";
  accumulation_ = 5;
  const Team team = Run(8, {{"pipeline", "1f1b"}});
  for (int rank = 0; rank < 8; ++rank) {
    Progress progress;
    progress.pipeline = PipelinePlace{0, 0, 1 + rank % 5, {}, {}};
    if (rank == 4) progress.pipeline->schedule = 77;
    EXPECT_OK(membership_->Heartbeat(team[rank]->attachment, progress));
  }
  const auto report = schedule_->PipelineOf(Description());
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->micro_batches, 5);
  ASSERT_THAT(report->lanes, SizeIs(2));
  EXPECT_THAT(report->lanes[0], SizeIs(10));
  for (const PipelineReport::Rank& rank : report->ranks) {
    EXPECT_FALSE(rank.at.has_value()) << "none is in the plan's schedule";
  }
  BeatAt(*team[0], 0, absl::Seconds(1), 0, 5);
  EXPECT_EQ(schedule_->PipelineOf(Description())->ranks[0].at, 0.0);
}

TEST_F(ScheduleRegistryTest, AScheduleThatIsTooLargeIsNotExplained) {
  mesh_ = "pp=2,dp=1";
  accumulation_ = 1 << 16;
  const Team team = Run(2, {{"progress_timeout", "5s"}, {"pipeline", "1f1b"}});
  for (int second = 0; second < 20; ++second) {
    clock_.Advance(absl::Seconds(1));
    for (const Worker* worker : team) {
      BeatAt(*worker, std::numeric_limits<int>::max(), absl::Hours(1), 0,
             1 << 16);
    }
    Tick();
  }
  EXPECT_EQ(Description().state, JobState::kRunning);
  const auto report = schedule_->PipelineOf(Description());
  ASSERT_TRUE(report.has_value());
  EXPECT_THAT(report->lanes, IsEmpty());
  EXPECT_THAT(report->findings, IsEmpty());
  EXPECT_EQ(report->ranks[0].in, "");
}

// The last heartbeats of a coordinator that stood still are old, and so are
// those of a rank that comes back.
TEST_F(ScheduleRegistryTest, OldPlacesDoNotEndAPipeline) {
  mesh_ = "pp=2,dp=1";
  const Team team = Run(2, {{"progress_timeout", "5s"}, {"pipeline", "1f1b"}});
  BeatAt(*team[0], 2, absl::Seconds(1));
  BeatAt(*team[1], 1, absl::Seconds(1));
  Tick();
  clock_.Advance(absl::Minutes(1));
  Tick();
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_FALSE(schedule_->WaitOf(Description()).has_value());
  for (int second = 1; second <= 5; ++second) {
    EXPECT_EQ(Description().state, JobState::kRunning);
    clock_.Advance(absl::Seconds(1));
    BeatAt(*team[0], 2, absl::Minutes(1));
    BeatAt(*team[1], 1, absl::Minutes(1));
    Tick();
  }
  EXPECT_EQ(Description().state, JobState::kEnded);
}

TEST_F(ScheduleRegistryTest, TicketsAreSignsOfLife) {
  const Team team = Run(2);
  for (int64_t round = 0; round < 20; ++round) {
    clock_.Advance(absl::Seconds(4));
    Announce(team, round);
    Tick();
  }
  EXPECT_EQ(Description().state, JobState::kRunning);
  clock_.Advance(absl::Seconds(4));
  Tick();
  clock_.Advance(absl::Seconds(4));
  Tick();
  clock_.Advance(absl::Seconds(4));
  Tick();
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(Description().last_event, HasSubstr("was lost"));
}

TEST_F(ScheduleRegistryTest, ARankThatLeftIsMissedByThoseThatGoOn) {
  const Team team = Run(2);
  Announce(team, 0);
  ASSERT_OK(membership_->Leave(team[1]->fence(), "done", false));
  EXPECT_EQ(Description().state, JobState::kRunning);
  Announce({team[0]}, 1);
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(Description().last_event, HasSubstr("rank 1"));
}

TEST_F(ScheduleRegistryTest, ALeaverIsMissedInAStreamThatBeginsLater) {
  const Team team = Run(2);
  ASSERT_OK(membership_->Leave(team[1]->fence(), "done", false));
  EXPECT_OK(schedule_->OnTicket(team[0]->attached, "late", MakeTicket(0)));
  EXPECT_EQ(Description().state, JobState::kEnded);
}

TEST_F(ScheduleRegistryTest, StreamsAreLimited) {
  ScheduleLimits limits;
  limits.max_streams = 2;
  Open(limits);
  const Team team = Run(2);
  EXPECT_OK(schedule_->OnTicket(team[0]->attached, "a", MakeTicket(0)));
  EXPECT_OK(schedule_->OnTicket(team[0]->attached, "b", MakeTicket(0)));
  EXPECT_THAT(schedule_->OnTicket(team[0]->attached, "c", MakeTicket(0)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_streams is 2")));
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string(65, 'x')}) {
    EXPECT_THAT(schedule_->OnVote(team[0]->attached, name, schedule::Vote()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("1 to 64 characters")));
  }
}

TEST_F(ScheduleRegistryTest, WhyNamesTheMissingRanks) {
  EXPECT_THAT(schedule_->Why("job"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("job")));
  EXPECT_THAT(schedule_->Why(""), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("a job name")));
  const Team team = Run(2);
  Announce(team, 0);
  clock_.Advance(absl::Seconds(2));
  Announce({team[0]}, 1);
  clock_.Advance(absl::Seconds(3));
  Announce({team[0]}, 1);  // a repetition is no progress
  ASSERT_OK_AND_ASSIGN(const WhyReport why, schedule_->Why("job"));
  EXPECT_EQ(why.state, "running");
  ASSERT_THAT(why.schedule.findings, testing::Not(IsEmpty()));
  EXPECT_THAT(why.schedule.findings[0], HasSubstr("rank 1"));
  ASSERT_THAT(why.schedule.ranks, SizeIs(2));
  EXPECT_FALSE(why.schedule.ranks[0].outlier);
  EXPECT_TRUE(why.schedule.ranks[1].outlier);
  ASSERT_TRUE(why.schedule.ranks[0].ticket.has_value());
  EXPECT_EQ(why.schedule.ranks[0].ticket->round, 1);
  EXPECT_FALSE(why.schedule.ranks[0].ticket->decided);
  EXPECT_EQ(why.schedule.ranks[1].ticket->round, 0);
  EXPECT_TRUE(why.schedule.ranks[1].ticket->decided);
  EXPECT_EQ(why.schedule.ranks[0].idle, absl::Seconds(3));
  EXPECT_EQ(why.schedule.ranks[1].idle, absl::Seconds(5));
  ASSERT_THAT(why.schedule.history, SizeIs(1));
  EXPECT_EQ(why.schedule.history[0].last_rank, 1);
}

TEST_F(ScheduleRegistryTest, WhyIsKeptAfterTheEndUntilTheNextGeneration) {
  Team team = Run(2);
  for (int64_t round = 0; round < 70; ++round) Announce(team, round);
  schedule::Ticket other = MakeTicket(70);
  other.digest = 5;
  Announce({team[0]}, 70);
  EXPECT_OK(schedule_->OnTicket(team[1]->attached, kTrain, other));
  clock_.Advance(absl::Seconds(60));
  ASSERT_OK_AND_ASSIGN(const WhyReport why, schedule_->Why("job"));
  EXPECT_EQ(why.state, "ended");
  EXPECT_EQ(why.schedule.findings[0], why.last_event);
  EXPECT_THAT(why.schedule.history, SizeIs(64));
  EXPECT_EQ(why.schedule.history[0].round, 69);
  EXPECT_EQ(why.schedule.at, clock_.Now() - absl::Seconds(60));
  EXPECT_EQ(why.schedule.ranks[1].member.member.identity.slot, 1);

  team = Run(2);
  ASSERT_OK_AND_ASSIGN(const WhyReport next, schedule_->Why("job"));
  EXPECT_EQ(next.state, "running");
  EXPECT_GT(next.generation.value(), why.generation.value());
  EXPECT_THAT(next.schedule.history, IsEmpty());
}

TEST_F(ScheduleRegistryTest, WhyOfALossNamesIt) {
  const Team team = Run(2);
  Announce(team, 0);
  ASSERT_OK(membership_->Leave(team[1]->fence(), "out of memory", true));
  ASSERT_OK_AND_ASSIGN(const WhyReport why, schedule_->Why("job"));
  EXPECT_THAT(why.schedule.findings[0], HasSubstr("out of memory"));
}

TEST_F(ScheduleRegistryTest, WhyOfAnEndBeforeTheRestartNamesIt) {
  const Team team = Run(2);
  Announce(team, 0);
  Beat(*team[1], 7, 1);
  ASSERT_OK(membership_->Leave(team[1]->fence(), "out of memory", true));
  clock_.Advance(absl::Seconds(60));
  Restart();
  ASSERT_OK_AND_ASSIGN(const WhyReport why, schedule_->Why("job"));
  EXPECT_EQ(why.state, "ended");
  EXPECT_EQ(why.ended, absl::Seconds(60));
  EXPECT_EQ(why.last_event_age, absl::Seconds(60));
  ASSERT_THAT(why.schedule.findings, SizeIs(2));
  EXPECT_EQ(why.schedule.findings[0], why.last_event);
  EXPECT_THAT(why.schedule.findings[0], HasSubstr("out of memory"));
  EXPECT_THAT(why.schedule.findings[1], HasSubstr("was restarted since then"));
  ASSERT_THAT(why.schedule.ranks, SizeIs(2));
  EXPECT_TRUE(why.schedule.ranks[1].member.restored);
  EXPECT_EQ(why.schedule.ranks[1].member.state, MemberState::kLost);
  EXPECT_EQ(why.schedule.ranks[1].member.progress.step, 7);
}

// A failure is a finding, whether it names ranks or not.
TEST_F(ScheduleRegistryTest, EveryEndHasAFinding) {
  Team team = Run(2);
  membership_->AbortGeneration("job", team[0]->joined->generation,
                               absl::AbortedError("names none"));
  EXPECT_THAT(schedule_->Why("job")->schedule.findings,
              ElementsAre("names none"));
  team = Run(2);
  Fence fence = team[0]->fence();
  ASSERT_OK(membership_->Leave(fence, "done", false));
  ASSERT_OK(membership_->Leave(team[1]->fence(), "done", false));
  EXPECT_THAT(schedule_->Why("job")->schedule.findings,
              ElementsAre(HasSubstr("have left cleanly")));
}

TEST_F(ScheduleRegistryTest, WhyOfAJobThatFormsHasWhatItWaitsFor) {
  Join(2, 0, {}, "job");
  ASSERT_OK_AND_ASSIGN(const WhyReport why, schedule_->Why("job"));
  EXPECT_EQ(why.state, "forming");
  EXPECT_THAT(why.forming, HasSubstr("1 of 2"));
  EXPECT_THAT(why.schedule.findings,
              ElementsAre(AllOf(HasSubstr("no generation of the job has begun"),
                                HasSubstr(why.forming))));
}

TEST_F(ScheduleRegistryTest, ARankThatOthersWaitForForLongIsNamed) {
  const Team team = Run(3);
  EXPECT_FALSE(schedule_->WaitOf(Description()).has_value());
  Announce(team, 0);
  Announce({team[0], team[2]}, 1);
  const absl::Time since = clock_.Now();
  clock_.Advance(absl::Seconds(2));
  EXPECT_FALSE(schedule_->WaitOf(Description()).has_value()) << "that is usual";
  clock_.Advance(absl::Seconds(3));
  const auto wait = schedule_->WaitOf(Description());
  ASSERT_TRUE(wait.has_value());
  EXPECT_THAT(wait->ranks, ElementsAre(1));
  EXPECT_EQ(wait->since, since);
  EXPECT_EQ(wait->waited, absl::Seconds(5));
  EXPECT_THAT(wait->finding, HasSubstr("rank 1 has not announced it"));
  Announce({team[1]}, 1);
  EXPECT_FALSE(schedule_->WaitOf(Description()).has_value());
  Announce({team[0]}, 2);
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(schedule_->WaitOf(Description()).has_value());
  ASSERT_OK(membership_->Leave(team[2]->fence(), "broken", true));
  EXPECT_FALSE(schedule_->WaitOf(Description()).has_value());
}

TEST_F(ScheduleRegistryTest, TheOldestEndedJobIsRemoved) {
  ScheduleLimits limits;
  limits.max_jobs = 2;
  Open(limits);
  for (const std::string job : {"a", "b"}) {
    const Team team = Run(1, {}, job);
    EXPECT_OK(schedule_->OnTicket(team[0]->attached, kTrain, MakeTicket(0)));
    if (job == "b") continue;
    Fence fence = team[0]->fence();
    fence.job = job;
    EXPECT_OK(membership_->Leave(fence, "done", false));
  }
  EXPECT_THAT(schedule_->Why("a")->schedule.history, SizeIs(1));
  Run(1, {}, "c");
  EXPECT_THAT(schedule_->Why("a")->schedule.history, IsEmpty());
  EXPECT_THAT(schedule_->Why("b")->schedule.history, SizeIs(1));
}

TEST_F(ScheduleRegistryTest, WhatAnEventBringsAboutComesAfterItForAll) {
  const Team team =
      Run(2, {{"enforcement", "strict"}, {"commit_vote", "true"}});
  // Both votes are there before rank 1 has received the grant.
  const auto vote_at_once = [&](const AttachEvent& event) {
    if (FlatEvent(event).kind != Kind::kGrant) return;
    for (const Worker* worker : team) {
      EXPECT_OK(schedule_->OnVote(worker->attached, kTrain, schedule::Vote()));
    }
  };
  ASSERT_OK(membership_->Attach(team[0]->fence(), vote_at_once));
  Announce(team, 0);
  ASSERT_THAT(team[1]->events, SizeIs(2));
  EXPECT_EQ(team[1]->events[0].kind, Kind::kGrant);
  EXPECT_EQ(team[1]->events[1].kind, Kind::kDecision);
}

// Ranks that each wait for the decision on one round before the next.
TEST_F(ScheduleRegistryTest,
       DecisionsComeInOrderWhicheverThreadBringsTheTickets) {
  constexpr int kWorld = 4;
  constexpr int64_t kRounds = 200;
  const Team team =
      Run(kWorld, {{"enforcement", "strict"}, {"commit_vote", "true"}});
  struct Observed {
    Mutex mutex;
    CondVar news;
    std::vector<std::string> events ABSL_GUARDED_BY(mutex);
  };
  std::vector<Observed> observed(kWorld);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto attachment = membership_->Attach(
        team[static_cast<size_t>(rank)]->fence(),
        [&own = observed[static_cast<size_t>(rank)]](const AttachEvent& event) {
          const FlatEvent flat(event);
          MutexLock lock(&own.mutex);
          own.events.push_back(absl::StrCat(
              flat.kind == Kind::kGrant ? "grant " : "decision ", flat.round));
          own.news.NotifyAll();
        });
    ASSERT_OK(attachment);
    ranks.emplace_back([this, rank, &team, &observed] {
      Observed& own = observed[static_cast<size_t>(rank)];
      const AttachedRank& attached = team[static_cast<size_t>(rank)]->attached;
      const auto wait = [&own](size_t count) {
        MutexLock lock(&own.mutex);
        return own.news.WaitFor(&own.mutex, absl::Seconds(30),
                                [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                  return own.events.size() >= count;
                                });
      };
      for (int64_t round = 0; round < kRounds; ++round) {
        const auto before = static_cast<size_t>(2 * round);
        EXPECT_OK(schedule_->OnTicket(attached, kTrain, MakeTicket(round)));
        if (!wait(before + 1)) break;
        schedule::Vote vote;
        vote.round = round;
        EXPECT_OK(schedule_->OnVote(attached, kTrain, vote));
        if (!wait(before + 2)) break;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  std::vector<std::string> expected;
  for (int64_t round = 0; round < kRounds; ++round) {
    expected.push_back(absl::StrCat("grant ", round));
    expected.push_back(absl::StrCat("decision ", round));
  }
  for (Observed& own : observed) {
    MutexLock lock(&own.mutex);
    EXPECT_EQ(own.events, expected);
  }
}

// While the outbox is being emptied, one rank repeats its ticket again and
// again.
TEST_F(ScheduleRegistryTest, RepetitionsDoNotFillTheQueue) {
  const Team team = Run(2);
  size_t observed = 0;
  const auto flood = [&](const AttachEvent& event) {
    ++observed;
    if (FlatEvent(event).kind != Kind::kDecision || observed > 1) return;
    for (int i = 0; i < 10'000; ++i) Announce({team[0]}, 0);
  };
  ASSERT_OK(membership_->Attach(team[0]->fence(), flood));
  Announce(team, 0);
  EXPECT_EQ(observed, 2u) << "all of them together are answered once";
  Announce(team, 1);
  Tick();
  EXPECT_THAT(team[1]->events, SizeIs(2)) << "decisions are never dropped";
}

// Each repetition is answered, and each answer brings a repetition.
TEST_F(ScheduleRegistryTest, NoThreadEmptiesTheQueueForEver) {
  const Team team = Run(2);
  int decisions = 0;
  const auto repeat = [&](const AttachEvent&) {
    if (++decisions < 100'000) Announce({team[0]}, 0);
  };
  ASSERT_OK(membership_->Attach(team[0]->fence(), repeat));
  Announce(team, 0);
  EXPECT_LT(decisions, 1000);
  const int before = decisions;
  Tick();
  EXPECT_GT(decisions, before) << "what is left is said later";
  EXPECT_LT(decisions, 1000);
}

TEST_F(ScheduleRegistryTest, NoDecisionIsWrittenBeforeARankLeaves) {
  const Team team = Run(2);
  Announce(team, 0);
  EXPECT_THAT(Tables(), IsEmpty());
  ASSERT_OK(SendFinalState(*team[0], Received(0)));
  ASSERT_THAT(Tables(), SizeIs(1));
  ASSERT_OK_AND_ASSIGN(const std::string record,
                       store_.Get(Tables()[0], kTrain));
  ASSERT_OK_AND_ASSIGN(const schedule::Decision kept, DecodePosition(record));
  EXPECT_EQ(kept.round, 0);
  EXPECT_TRUE(kept.commit);
  for (const Worker* worker : team) {
    EXPECT_OK(membership_->Leave(worker->fence(), "done", false));
  }
  EXPECT_THAT(Tables(), IsEmpty());
}

TEST_F(ScheduleRegistryTest,
       WhatALeavingRankHasReceivedIsQueuedBeforeItLeaves) {
  const Team team = Run(3);
  Announce(team, 0);
  store_.Hold();
  ASSERT_OK(SendFinalState(*team[0], Received(0)));
  EXPECT_EQ(store_.waiting(), 1u);
  // What is known is not written again.
  ASSERT_OK(SendFinalState(*team[1], Received(0)));
  EXPECT_EQ(store_.waiting(), 1u);
  store_.Release();
}

// It may have overtaken what it sends on its stream.
TEST_F(ScheduleRegistryTest,
       ALeavingRankReportsItsPositionToARestartedCoordinator) {
  const Team team = Run(2);
  Announce(team, 0);
  Restart();
  for (Worker* worker : team) Reattach(worker);
  schedule::Decision last = Received(0);
  last.stop = "rank 0: a signal";
  ASSERT_OK(SendFinalState(*team[0], last));
  Fence fence = team[0]->fence();
  fence.term = membership_->term();
  EXPECT_OK(membership_->Leave(fence, "done", false));
  Announce({team[1]}, 0);  // it has received nothing
  ASSERT_THAT(team[1]->events, Not(IsEmpty()));
  EXPECT_EQ(team[1]->events.back().kind, Kind::kDecision);
  EXPECT_EQ(team[1]->events.back().decision.stop, "rank 0: a signal");
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(ScheduleRegistryTest, TrainingGoesOnAfterARestart) {
  const Team team = Run(2);
  Announce(team, 0);
  Announce({team[0]}, 1);
  Restart();
  for (Worker* worker : team) Reattach(worker);
  ReportPosition(*team[0], Received(0));
  ReportPosition(*team[1], Received(0));
  Announce(team, 1);
  Announce(team, 2);
  for (const Worker* worker : team) {
    ASSERT_THAT(worker->events, SizeIs(2));
    EXPECT_EQ(worker->events[0].kind, Kind::kDecision);
    EXPECT_EQ(worker->events[0].round, 1);
    EXPECT_EQ(worker->events[1].round, 2);
  }
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(ScheduleRegistryTest, ALostDecisionIsSentAfterARestart) {
  const Team team = Run(2);
  Announce(team, 0);
  Restart();
  for (Worker* worker : team) Reattach(worker);
  Announce({team[1]}, 0);  // it has received nothing
  EXPECT_THAT(team[1]->events, IsEmpty());
  ReportPosition(*team[0], Received(0));
  ASSERT_THAT(team[1]->events, SizeIs(1));
  EXPECT_EQ(team[1]->events[0].round, 0);
}

// The coordinator was cut off, not restarted: what it had decided meanwhile,
// and what it received before, does not count.
TEST_F(ScheduleRegistryTest, ARankBackFromTheFallbackRaisesTheEpoch) {
  const Team team = Run(2);
  Announce(team, 0);
  Announce(team, 1);  // decided, and received by no rank
  Announce({team[0]}, 2);
  const AttachedRank old = team[0]->attached;
  Reattach(team[1]);
  team[1]->events.clear();
  ASSERT_OK(schedule_->OnFallbackReport(team[1]->attached, 1));
  // A rank that has attached before is to do so again, with its position.
  ASSERT_THAT(team[0]->EventsOf(Kind::kClosed), SizeIs(1));
  // With UNAVAILABLE it would look for another coordinator.
  EXPECT_THAT(team[0]->EventsOf(Kind::kClosed)[0].status,
              StatusIs(absl::StatusCode::kCancelled, testing::_));
  EXPECT_EQ(schedule_->OnAttached(team[1]->attached).fallback, 1);
  EXPECT_OK(schedule_->OnTicket(old, kTrain, MakeTicket(6)));
  ReportPosition(*team[1], Received(5));
  Announce({team[1]}, 6);
  EXPECT_THAT(team[1]->EventsOf(Kind::kDecision), IsEmpty());
  Reattach(team[0]);
  ASSERT_OK(schedule_->OnFallbackReport(team[0]->attached, 1));
  EXPECT_THAT(team[1]->EventsOf(Kind::kClosed), IsEmpty());
  ReportPosition(*team[0], Received(4));
  Announce({team[0]}, 5);
  Announce({team[0]}, 6);
  const auto decisions = team[0]->EventsOf(Kind::kDecision);
  ASSERT_THAT(decisions, SizeIs(2));
  EXPECT_EQ(decisions[0].round, 5);
  EXPECT_EQ(decisions[1].round, 6);
  EXPECT_EQ(decisions[1].epoch.fallback, 1);
  EXPECT_EQ(Description().state, JobState::kRunning);
}

// An attachment from before the report of another rank is below the epoch,
// until it reports it itself; one that was replaced stays out whatever it
// reports.
TEST_F(ScheduleRegistryTest, AnAttachmentSendsInTheEpochThatItReports) {
  const Team team = Run(2);
  const AttachedRank replaced = team[0]->attached;
  Reattach(team[0]);
  EXPECT_EQ(schedule_->OnAttached(replaced).fallback, 0);
  ASSERT_OK(schedule_->OnFallbackReport(replaced, 5));
  ASSERT_OK(schedule_->OnFallbackReport(team[1]->attached, 1));
  EXPECT_EQ(schedule_->OnAttached(team[0]->attached),
            schedule_->OnAttached(replaced));
  EXPECT_EQ(schedule_->OnAttached(replaced).fallback, 1);
  Announce(team, 0);
  EXPECT_THAT(team[1]->EventsOf(Kind::kDecision), IsEmpty());
  ASSERT_OK(schedule_->OnFallbackReport(team[0]->attached, 1));
  EXPECT_THAT(team[1]->EventsOf(Kind::kClosed), IsEmpty()) << "it is not new";
  Announce({team[0]}, 0);
  ASSERT_THAT(team[1]->EventsOf(Kind::kDecision), SizeIs(1));
  EXPECT_EQ(team[1]->EventsOf(Kind::kDecision)[0].epoch.fallback, 1);
}

TEST_F(ScheduleRegistryTest, ALeavingRankMayComeFromTheFallback) {
  const Team team = Run(2);
  Announce(team, 0);
  ASSERT_OK(SendFinalState(*team[0], Received(7), /*fallback_epoch=*/2));
  EXPECT_OK(membership_->Leave(team[0]->fence(), "done", false));
  Reattach(team[1]);
  ASSERT_OK(schedule_->OnFallbackReport(team[1]->attached, 2));
  ReportPosition(*team[1], Received(6));
  Announce({team[1]}, 7);
  ASSERT_THAT(team[1]->EventsOf(Kind::kDecision), SizeIs(1));
  EXPECT_EQ(team[1]->EventsOf(Kind::kDecision)[0].round, 7);
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(ScheduleRegistryTest, AFallbackEpochThatCannotBeIsRefused) {
  const Team team = Run(2);
  const int64_t too_many = int64_t{1} << 31;
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("a fallback epoch must be"));
  EXPECT_THAT(schedule_->OnFallbackReport(team[0]->attached, 0), refused);
  EXPECT_THAT(schedule_->OnFallbackReport(team[0]->attached, too_many),
              refused);
  EXPECT_THAT(SendFinalState(*team[0], Received(7), -1), refused);
  EXPECT_THAT(SendFinalState(*team[0], Received(7), too_many), refused);
  EXPECT_EQ(schedule_->OnAttached(team[0]->attached).fallback, 0);
}

// Each has a position that could be kept, and something else is wrong.
TEST_F(ScheduleRegistryTest, ARefusedLeaveHasNoEffect) {
  const Team team = Run(2);
  Announce(team, 0);
  const auto leave = [&](const std::vector<JobSchedule::Position>& more) {
    ScheduleRegistry::FinalState state;
    state.fallback_epoch = 3;
    state.positions.push_back({std::string(kTrain), Received(9)});
    state.positions.insert(state.positions.end(), more.begin(), more.end());
    return schedule_->OnLeaving("job", team[0]->joined->generation, state);
  };
  const auto refused = [](const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  store_.Hold();
  EXPECT_THAT(leave({{"!!", Received(0)}}), refused("1 to 64 characters"));
  EXPECT_THAT(leave({{std::string(kTrain), Received(9)}}),
              refused("two positions of stream \"train\""));
  EXPECT_THAT(leave({{"a", Received(-1)}}), refused("position.round"));
  schedule::Decision planned = Received(0);
  planned.plan = schedule::Plan();
  planned.plan->version = 1;
  planned.plan->at_step = -7;
  EXPECT_THAT(leave({{"a", planned}}), refused("at_step"));
  schedule::Decision long_stop = Received(0);
  long_stop.stop = std::string(1 << 20, 'x');
  EXPECT_THAT(leave({{"a", long_stop}}), refused("a text of a position"));
  std::vector<JobSchedule::Position> many;
  for (int i = 0; i < ScheduleLimits().max_streams; ++i) {
    many.push_back({absl::StrCat("stream-", i), Received(0)});
  }
  EXPECT_THAT(leave(many), StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("max_streams is 64")));
  EXPECT_EQ(store_.waiting(), 0u);
  EXPECT_EQ(schedule_->OnAttached(team[0]->attached).fallback, 0);
  EXPECT_THAT(team[1]->EventsOf(Kind::kClosed), IsEmpty());
  // No stream was taken up either: there is room for all but one.
  for (int i = 0; i + 1 < ScheduleLimits().max_streams; ++i) {
    EXPECT_OK(schedule_->OnTicket(team[0]->attached, absl::StrCat("other-", i),
                                  MakeTicket(0)));
  }
  Announce(team, 1);
  EXPECT_EQ(team[1]->EventsOf(Kind::kDecision).back().round, 1);
}

// Its rank has received what was never decided: nothing that the next
// coordinator should begin with.
TEST_F(ScheduleRegistryTest, WhatEndsTheGenerationIsNotKept) {
  const Team team = Run(2);
  Announce(team, 0);
  store_.Hold();
  ASSERT_OK(SendFinalState(*team[0], Received(5)));
  store_.Release();
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(Tables(), IsEmpty());
}

TEST_F(ScheduleRegistryTest, AWishForACheckpointIsCut) {
  const Team team = Run(1);
  ASSERT_OK(schedule_->RequestCheckpoint("job", std::string(1 << 20, 'x')));
  Announce(team, 0);
  EXPECT_EQ(team[0]->events.back().decision.checkpoint.size(), 512u);
}

TEST_F(ScheduleRegistryTest, ALaterEpochForgetsNoWishForACheckpoint) {
  const Team team = Run(2);
  Announce(team, 0);
  ASSERT_OK_AND_ASSIGN(const int64_t before,
                       schedule_->RequestCheckpoint("job", "an operator"));
  ASSERT_OK(schedule_->OnFallbackReport(team[0]->attached, 1));
  Reattach(team[1]);
  ASSERT_OK(schedule_->OnFallbackReport(team[1]->attached, 1));
  ASSERT_OK_AND_ASSIGN(const int64_t after,
                       schedule_->RequestCheckpoint("job", "an operator"));
  EXPECT_GE(after, before);
  for (const Worker* worker : team) ReportPosition(*worker, Received(4));
  Announce(team, 5);
  EXPECT_EQ(team[0]->events.back().decision.checkpoint, "an operator");
}

// The coordinator has not sent it, and the ranks have gone on.
TEST_F(ScheduleRegistryTest, ARegroupThatWasDecidedOtherwiseIsTakenBack) {
  for (const bool back : {true, false}) {
    const Team team = Run(2);
    Announce(team, 0);
    schedule_->OnRegroupWanted("job", team[0]->attached.generation,
                               "2 spares wait");
    Announce(team, 1);
    if (back) {
      ASSERT_OK(schedule_->OnFallbackReport(team[0]->attached, 1));
    }
    // They end their work, which is no regroup.
    for (const Worker* worker : team) {
      if (back) {
        ASSERT_OK(SendFinalState(*worker, Received(9), /*fallback_epoch=*/1));
      }
      EXPECT_OK(membership_->Leave(worker->fence(), "done", false));
    }
    EXPECT_EQ(absl::StrContains(Description().last_event,
                                "before their work was done"),
              !back)
        << Description().last_event;
  }
}

// It was cut off, and they have trained on with the fallback coordinator.
TEST_F(ScheduleRegistryTest, NoRankIsMissedWhileOneIsDetached) {
  const Team team = Run(2, {{"progress_timeout", "2s"}});
  Announce(team, 0);
  Announce({team[0]}, 1);
  Tick();
  membership_->Detach(team[1]->attachment);
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(absl::Seconds(1));
    Tick();
  }
  ASSERT_EQ(Description().state, JobState::kRunning)
      << Description().last_event;
  Reattach(team[1]);
  for (int i = 0; i < 2; ++i) {
    Tick();
    ASSERT_EQ(Description().state, JobState::kRunning)
        << Description().last_event;
    clock_.Advance(absl::Seconds(1));
  }
  Tick();
  EXPECT_EQ(Description().state, JobState::kEnded);
}

TEST_F(ScheduleRegistryTest, APausedCoordinatorMissesNoRankYet) {
  const Team team = Run(2, {{"progress_timeout", "2s"}});
  Announce(team, 0);
  Announce({team[0]}, 1);
  Tick();
  clock_.Advance(absl::Seconds(4));
  Tick();
  EXPECT_EQ(Description().state, JobState::kRunning)
      << Description().last_event;
}

TEST_F(ScheduleRegistryTest, ThatTheFallbackHasLeftIsSentAtEachAttach) {
  const Team team = Run(2);
  EXPECT_OK(
      membership_->NoteFallbackAddress(team[0]->attachment, "10.0.0.1:4711"));
  EXPECT_OK(membership_->Leave(team[0]->fence(), "done", false));
  Reattach(team[1]);
  EXPECT_OK(membership_->NoteFallbackAddress(team[1]->attachment, ""));
  ASSERT_THAT(team[1]->EventsOf(Kind::kFallback), SizeIs(1));
  EXPECT_EQ(team[1]->EventsOf(Kind::kFallback)[0].address, "");
}

TEST_F(ScheduleRegistryTest, TheFallbackAddressIsSentToTheOthers) {
  const Team team = Run(3);
  EXPECT_OK(membership_->NoteFallbackAddress(team[1]->attachment, ""));
  EXPECT_THAT(team[1]->EventsOf(Kind::kFallback), IsEmpty());
  EXPECT_OK(
      membership_->NoteFallbackAddress(team[0]->attachment, "10.0.0.1:4711"));
  EXPECT_THAT(team[0]->EventsOf(Kind::kFallback), IsEmpty());
  ASSERT_THAT(team[1]->EventsOf(Kind::kFallback), SizeIs(1));
  EXPECT_EQ(team[1]->EventsOf(Kind::kFallback)[0].address, "10.0.0.1:4711");
  // Of others it does not count.
  EXPECT_OK(
      membership_->NoteFallbackAddress(team[1]->attachment, "10.0.0.2:1"));
  Reattach(team[2]);
  EXPECT_OK(membership_->NoteFallbackAddress(team[2]->attachment, ""));
  ASSERT_THAT(team[2]->EventsOf(Kind::kFallback), SizeIs(1));
  EXPECT_EQ(team[2]->EventsOf(Kind::kFallback)[0].address, "10.0.0.1:4711");
  EXPECT_EQ(team[2]->EventsOf(Kind::kFallback)[0].rank, 0);
}

TEST_F(ScheduleRegistryTest, AFallbackAddressIsAHostAndAPort) {
  const Team team = Run(1);
  for (const std::string& address :
       {std::string("10.0.0.1"), std::string(":1"), std::string("a:0"),
        std::string("a:65536"), std::string(300, 'a') + ":1"}) {
    EXPECT_THAT(membership_->NoteFallbackAddress(team[0]->attachment, address),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::_))
        << address;
  }
}

TEST_F(ScheduleRegistryTest, WhyReportsTheRestart) {
  const Team team = Run(2);
  Announce(team, 0);
  const int64_t term = membership_->term().value();
  Restart();
  Reattach(team[0]);
  ReportPosition(*team[0], Received(0));
  ASSERT_OK_AND_ASSIGN(const WhyReport why, schedule_->Why("job"));
  EXPECT_THAT(
      why.schedule.findings,
      Contains(AllOf(HasSubstr(absl::StrCat("resumed from term ", term)),
                     HasSubstr("stream \"train\" is at round 1"),
                     HasSubstr("rank 1 did not come back yet"))));
}

// A rank that hangs is not looked for among those that are still away.
TEST_F(ScheduleRegistryTest, NoRankIsMissedBeforeItCanBeBack) {
  const Team team = Run(2, {{"progress_timeout", "2s"}});
  Announce(team, 0);
  Restart();
  Reattach(team[0]);
  ReportPosition(*team[0], Received(0));
  Announce({team[0]}, 1);
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(absl::Seconds(1));
    Beat(*team[0], 1, 1);
    Tick();
  }
  ASSERT_EQ(Description().state, JobState::kRunning)
      << Description().last_event;
  Reattach(team[1]);
  for (int i = 0; i < 4 && Description().state == JobState::kRunning; ++i) {
    clock_.Advance(absl::Seconds(1));
    Beat(*team[0], 1, 1);
    Beat(*team[1], 1, 1);
    Tick();
  }
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(Description().last_event, HasSubstr("rank 1"));
}

TEST_F(ScheduleRegistryTest, APlanUnderWayAtARestartLandsAlike) {
  const Team team = Run(2);
  Announce(team, 0);
  schedule::Plan plan = plans_->Get("job")->current;
  plan.hook = "bf16";
  plan.at_step = schedule::Plan::kAtNextStep;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  // In force, and received by no rank: as if the coordinator had died there.
  ASSERT_OK_AND_ASSIGN(
      const auto next,
      plans_->TakeEffect("job", team[0]->joined->generation, 2));
  ASSERT_TRUE(next.has_value());
  Restart();
  for (Worker* worker : team) Reattach(worker);
  for (const Worker* worker : team) ReportPosition(*worker, Received(0));
  Announce(team, 1, 1);
  for (const Worker* worker : team) {
    ASSERT_THAT(worker->events, SizeIs(1));
    ASSERT_TRUE(worker->events[0].decision.plan.has_value());
    EXPECT_EQ(worker->events[0].decision.plan->version, 2);
    EXPECT_EQ(worker->events[0].decision.plan->at_step, 2);
  }
  for (Worker* worker : team) {
    schedule::Ticket ticket = MakeTicket(2, 2);
    ticket.hook = "bf16";
    EXPECT_OK(schedule_->OnTicket(worker->attached, kTrain, ticket));
  }
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(team[0]->events, SizeIs(2));
}

TEST_F(ScheduleRegistryTest, WhatCannotBeStoredIsSentAllTheSame) {
  const Team team = Run(2);
  memory_.FailWrites(absl::UnavailableError("disk full"));
  Announce(team, 0);
  memory_.FailWrites(absl::OkStatus());
  EXPECT_THAT(team[0]->events, SizeIs(1));
  Restart();
  for (Worker* worker : team) Reattach(worker);
  ReportPosition(*team[0], Received(0));
  Announce({team[1]}, 0);
  EXPECT_THAT(team[1]->events, SizeIs(1));
}

TEST_F(ScheduleRegistryTest, ADamagedPositionEndsItsGeneration) {
  const Team team = Run(2);
  Announce(team, 0);
  ASSERT_OK(SendFinalState(*team[0], Received(0)));
  const std::string table = Tables()[0];
  ASSERT_OK(memory_.Put(table, kTrain, "nonsense"));
  Restart();
  ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(memory_));
  ASSERT_THAT(quarantined, SizeIs(1));
  EXPECT_EQ(quarantined[0].table, table);
  EXPECT_EQ(quarantined[0].key, kTrain);
  EXPECT_EQ(quarantined[0].job, "job");
  EXPECT_EQ(memory_.List("quarantine")->at(0).second, "nonsense");
  EXPECT_THAT(Tables(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const auto jobs, membership_->Describe("job"));
  EXPECT_EQ(jobs[0].state, JobState::kEnded);
  EXPECT_THAT(jobs[0].last_event,
              AllOf(HasSubstr(table), HasSubstr("in quarantine")));
}

TEST_F(ScheduleRegistryTest, APositionOfNoStreamEndsItsGeneration) {
  const Team team = Run(2);
  Announce(team, 0);
  ASSERT_OK(SendFinalState(*team[0], Received(0)));
  const std::string table = Tables()[0];
  ASSERT_OK_AND_ASSIGN(const std::string good, memory_.Get(table, kTrain));
  ASSERT_OK(memory_.Put(table, "!!", good));
  Restart();
  EXPECT_EQ(memory_.List("quarantine")->at(0).second, good);
  EXPECT_EQ(membership_->Describe("job")->at(0).state, JobState::kEnded);
}

TEST_F(ScheduleRegistryTest, EachNewcomerIsNamedOnceAndFourAtATime) {
  const Team team = Run(2);
  const Generation generation = team[0]->attached.generation;
  Announce(team, 0);
  for (uint64_t i = 1; i <= 3; ++i) {
    schedule_->OnCatchUpWanted(
        "job", generation,
        {{"host-b:1", 7, 2 * i}, {"host-b:2", 7, 2 * i + 1}});
  }
  for (const int64_t round : {1, 2, 3}) Announce(team, round);
  std::vector<std::vector<uint64_t>> named;
  for (const auto& event : team[1]->events) {
    named.emplace_back();
    for (const schedule::Newcomer& newcomer : event.decision.newcomers) {
      named.back().push_back(newcomer.incarnation);
    }
  }
  EXPECT_THAT(named, ElementsAre(IsEmpty(), ElementsAre(2, 3, 4, 5),
                                 ElementsAre(6, 7), IsEmpty()));
}

TEST_F(ScheduleRegistryTest, ARegroupIsTheLastDecision) {
  const Team team = Run(2);
  Announce(team, 0);
  schedule_->OnRegroupWanted("job", team[0]->attached.generation,
                             "2 spares wait");
  Announce(team, 1);
  for (const Worker* worker : team) {
    ASSERT_THAT(worker->events, SizeIs(2));
    EXPECT_EQ(worker->events[0].decision.regroup, "");
    EXPECT_EQ(worker->events[1].decision.regroup, "2 spares wait");
  }
  // Also for a coordinator that is started then, if any rank has received it.
  Restart();
  for (Worker* worker : team) Reattach(worker);
  schedule::Decision last = Received(1);
  last.regroup = "2 spares wait";
  ReportPosition(*team[0], last);
  Announce({team[1]}, 1);
  ASSERT_THAT(team[1]->events, SizeIs(1));
  EXPECT_EQ(team[1]->events[0].decision.regroup, "2 spares wait");
}

TEST_F(ScheduleRegistryTest, AWishToRegroupCanBeWithdrawn) {
  const Team team = Run(2);
  Announce(team, 0);
  schedule_->OnRegroupWanted("job", team[0]->attached.generation,
                             "2 spares wait");
  schedule_->OnRegroupWanted("job", team[0]->attached.generation, "");
  Announce(team, 1);
  ASSERT_THAT(team[0]->events, SizeIs(2));
  EXPECT_EQ(team[0]->events[1].decision.regroup, "");
}

TEST_F(ScheduleRegistryTest, ADrainNamesTheMember) {
  const Team team = Run(2);
  schedule::Ticket ticket = MakeTicket(0);
  ticket.drain = "SIGTERM";
  EXPECT_OK(schedule_->OnTicket(team[1]->attached, kTrain, ticket));
  Announce({team[0]}, 0);
  EXPECT_EQ(team[0]->events.back().decision.regroup,
            "rank 1 (host-a/1) drains: SIGTERM");
}

TEST_F(ScheduleRegistryTest, OtherStreamsDoNotRegroup) {
  const Team team = Run(2);
  schedule_->OnRegroupWanted("job", team[0]->attached.generation,
                             "2 spares wait");
  for (const Worker* worker : team) {
    EXPECT_OK(schedule_->OnTicket(worker->attached, "critic", MakeTicket(0)));
  }
  EXPECT_EQ(team[0]->events.back().decision.regroup, "");
  Announce(team, 0);
  EXPECT_EQ(team[0]->events.back().decision.regroup, "2 spares wait");
}

TEST_F(ScheduleRegistryTest, ACheckpointIsAskedForOnceAndKept) {
  const Team team = Run(2);
  Announce(team, 0);
  ASSERT_OK_AND_ASSIGN(const int64_t newest,
                       schedule_->RequestCheckpoint("job", "an operator"));
  EXPECT_EQ(newest, 1);
  Announce(team, 1);
  // Also for a coordinator that is started then, if any rank has received it.
  Restart();
  for (Worker* worker : team) Reattach(worker);
  schedule::Decision last = Received(1);
  last.checkpoint = "an operator";
  ReportPosition(*team[0], last);
  Announce({team[1]}, 1);
  ASSERT_THAT(team[1]->events, SizeIs(1));
  EXPECT_EQ(team[1]->events[0].decision.checkpoint, "an operator");
}

TEST_F(ScheduleRegistryTest, ACheckpointMayBeAskedForBeforeTheFirstTicket) {
  const Team team = Run(2);
  EXPECT_OK(schedule_->RequestCheckpoint("job", ""));
  for (const Worker* worker : team) {
    EXPECT_OK(schedule_->OnTicket(worker->attached, "critic", MakeTicket(0)));
  }
  EXPECT_EQ(team[0]->events.back().decision.checkpoint, "")
      << "of another stream";
  Announce(team, 0);
  EXPECT_EQ(team[0]->events.back().decision.checkpoint, "it was asked for");
  Announce(team, 1);
  EXPECT_EQ(team[0]->events.back().decision.checkpoint, "");
}

TEST_F(ScheduleRegistryTest, OnlyAJobThatRunsCanBeSaved) {
  EXPECT_THAT(schedule_->RequestCheckpoint("job", "an operator"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("job")));
}

}  // namespace
}  // namespace coxswain::server
