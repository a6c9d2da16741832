#include "server/membership/membership.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "proto/types.pb.h"
#include "server/membership/membership_fixture.h"
#include "server/state/cluster_records.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(MembershipTest, RoundClosesWithTheLastWorker) {
  Worker* b = Make(3, 0, "job", "host-10");
  Worker* a = Make(3, 1, "job", "host-9");
  Worker* c = Make(3, 0, "job", "host-9");
  Join(b);
  Join(a);
  EXPECT_THAT(a->answers, IsEmpty());
  EXPECT_EQ(Description().state, JobState::kForming);
  Join(c);
  for (const Worker* worker : {a, b, c}) {
    ASSERT_THAT(worker->answers, SizeIs(1));
    ASSERT_OK(worker->answers[0]);
    EXPECT_EQ(worker->joined().generation, Generation(1));
    EXPECT_EQ(worker->joined().plan.version, 1);
    EXPECT_THAT(*worker->joined().members, SizeIs(3));
  }
  EXPECT_EQ(c->joined().rank, 0);
  EXPECT_EQ(a->joined().rank, 1);
  EXPECT_EQ(b->joined().rank, 2);
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(MembershipTest, ASummaryCountsMembersByTheirState) {
  Worker* a = Make(2, 0);
  Worker* b = Make(2, 1);
  Join(a);
  ASSERT_THAT(membership_->Summaries(), SizeIs(1));
  EXPECT_EQ(membership_->Summaries()[0].waiting, 1);
  EXPECT_EQ(membership_->Summaries()[0].live(), 0);
  Join(b);
  const JobSummary summary = membership_->Summaries()[0];
  EXPECT_EQ(summary.job, "job");
  EXPECT_EQ(summary.state, JobState::kRunning);
  EXPECT_EQ(summary.generation, Generation(1));
  EXPECT_EQ(summary.world_size, 2);
  EXPECT_EQ(summary.joined, 2);
  EXPECT_EQ(summary.live(), 2);
  EXPECT_EQ(summary.waiting, 0);
  EXPECT_EQ(summary.plan_version, 1);
  EXPECT_FALSE(summary.idle.has_value()) << "nobody is attached";
}

TEST_F(MembershipTest, JoinDeadlineNamesThePresentAndCountsTheMissing) {
  Worker* a = Make(3, 0);
  Worker* b = Make(3, 1);
  Join(a);
  Join(b);
  Pass(absl::Seconds(29));
  EXPECT_THAT(a->answers, IsEmpty());
  Pass(absl::Seconds(1));
  ASSERT_THAT(a->answers, SizeIs(1));
  EXPECT_THAT(a->answers[0], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      AllOf(HasSubstr("2 of 3"),
                                            HasSubstr("host-a/0, host-a/1"),
                                            HasSubstr("1 missing"))));
  const v1::ErrorDetail detail = DetailOf(a->answers[0].status());
  EXPECT_EQ(detail.missing_members().expected(), 3);
  EXPECT_EQ(detail.missing_members().present_size(), 2);
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(Description().last_event, HasSubstr("2 of 3"));
}

TEST_F(MembershipTest, EachArrivalBeginsTheTimeOfAllAnew) {
  Worker* a = Make(3, 0);
  Worker* b = Make(3, 1);
  b->request.timeout = absl::Seconds(20);
  Join(a);
  Pass(absl::Seconds(29));
  Join(b);
  Pass(absl::Seconds(19));
  EXPECT_THAT(a->answers, IsEmpty());
  // No new one.
  Join(b);
  Pass(absl::Seconds(1));
  ASSERT_THAT(b->answers, SizeIs(2));
  EXPECT_THAT(b->answers[1],
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
  Pass(absl::Seconds(9));
  EXPECT_THAT(a->answers, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(a->answers, SizeIs(1));
}

TEST_F(MembershipTest, AWorkerThatComesAndGoesHoldsNoOther) {
  Worker* a = Make(3, 0);
  Worker* b = Make(3, 1);
  Join(a);
  for (int second = 0; second < 29; ++second) {
    Join(b);
    membership_->Withdraw(b->join_id);
    Pass(absl::Seconds(1));
  }
  EXPECT_THAT(a->answers, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(a->answers, SizeIs(1));
}

TEST_F(MembershipTest, RunningJobRefusesAnotherManifest) {
  Run(2);
  Worker* late = Make(2, 0);  // the identity clashes too
  late->request.launcher_id = 8;
  late->request.manifest.hook = "bf16";
  Join(late);
  EXPECT_THAT(
      late->answers.at(0),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("job 'job' already runs with another manifest"),
                     HasSubstr("hook: allreduce on host-a/0, bf16 here"))));
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(MembershipTest, RunningJobThatIsFullRefusesNewcomers) {
  Run(2);
  Worker* late = Make(2, 5);
  Join(late);
  EXPECT_THAT(
      late->answers.at(0),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("job 'job' is running with all 2 ranks taken; choose "
                         "another --job name or wait")));
}

TEST_F(MembershipTest, RepeatedJoinTakesThePlaceOfTheEarlier) {
  Worker* a = Make(2, 0);
  Join(a);
  Join(a);
  ASSERT_THAT(a->answers, SizeIs(1));
  EXPECT_THAT(a->answers[0],
              StatusIs(absl::StatusCode::kCancelled, testing::_));
  Worker* b = Make(2, 1);
  Join(b);
  ASSERT_THAT(a->answers, SizeIs(2));
  EXPECT_OK(a->answers[1]);
  // The answer may have been lost on its way.
  Join(a);
  ASSERT_THAT(a->answers, SizeIs(3));
  ASSERT_OK(a->answers[2]);
  EXPECT_EQ(a->answers[2]->generation, Generation(1));
}

TEST_F(MembershipTest, SameLauncherReplacesItsWaitingWorker) {
  Worker* old = Make(2, 0);
  Worker* fresh = Make(2, 0);
  Join(old);
  Join(fresh);
  EXPECT_THAT(old->answers.at(0),
              StatusIs(absl::StatusCode::kCancelled, testing::_));
  Join(Make(2, 1));
  EXPECT_OK(fresh->answers.at(0));
}

TEST_F(MembershipTest, OtherLauncherWithTheSameIdentityIsAskedForANode) {
  Worker* old = Make(2, 0);
  Worker* other = Make(2, 0);
  other->request.launcher_id = 8;
  Join(old);
  Join(other);
  EXPECT_THAT(other->answers.at(0),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("host-a/0"), HasSubstr("--node"))));
  Join(Make(2, 1));
  ASSERT_OK(old->answers.at(0));
  Join(other);
  EXPECT_THAT(other->answers.at(1),
              StatusIs(absl::StatusCode::kAlreadyExists, testing::_));
}

TEST_F(MembershipTest, NewIncarnationInARunningJobEndsTheGeneration) {
  const auto team = Run(2);
  Worker* fresh = Make(2, 1);
  Join(fresh);
  ExpectAborted(*team[0],
                "rank 1 (host-a/1, incarnation 0000000000000002) "
                "was lost: a new process took its place");
  EXPECT_THAT(fresh->answers, IsEmpty());
  Join(team[0]);
  ASSERT_OK(fresh->answers.at(0));
  EXPECT_EQ(fresh->joined().generation, Generation(2));
  EXPECT_THAT(membership_->Admit(team[1]->fence()),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::_));
}

TEST_F(MembershipTest, DetachedWorkerIsReplacedByItsLauncher) {
  const auto team = Run(2);
  membership_->Detach(team[1]->attachment);
  Worker* fresh = Make(2, 1);
  Join(fresh);
  EXPECT_THAT(fresh->answers, IsEmpty());
  EXPECT_EQ(Description().state, JobState::kForming);
  ExpectAborted(*team[0], "a new process took its place");
}

TEST_F(MembershipTest, ReportedExitEndsTheGenerationAtOnce) {
  const auto team = Run(3);
  membership_->ReportExit(team[2]->exit(9));
  const std::string text =
      "rank 2 (host-a/2, incarnation 0000000000000003) was lost: killed by "
      "signal 9 (reported by its launcher)";
  ExpectAborted(*team[0], text);
  ExpectAborted(*team[1], text);
  ASSERT_TRUE(team[0]->events[0].member.has_value());
  EXPECT_EQ(team[0]->events[0].member->rank, 2);
  EXPECT_EQ(DetailOf(team[0]->events[1].status).member_lost().member().rank(),
            2);
  ASSERT_THAT(observer_.ended, SizeIs(1));
  EXPECT_EQ(observer_.ended[0].generation, Generation(1));
  EXPECT_THAT(observer_.ended[0].reason,
              StatusIs(absl::StatusCode::kAborted, text));
  EXPECT_EQ(Description().last_event, text);
  EXPECT_EQ(Description().members[2].state, MemberState::kLost);
  // Once is enough.
  membership_->ReportExit(team[2]->exit(9));
  EXPECT_THAT(observer_.ended, SizeIs(1));
}

TEST_F(MembershipTest, UnknownExitReportsAreIgnored) {
  const auto team = Run(2);
  ExitReport report = team[1]->exit(9);
  report.incarnation = Incarnation(12345);
  membership_->ReportExit(report);
  report = team[1]->exit(9);
  report.launcher_id = 12345;
  membership_->ReportExit(report);
  report = team[1]->exit(9);
  report.job = "ghost";
  membership_->ReportExit(report);
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(MembershipTest, ExitAfterLeavingIsNoLoss) {
  const auto team = Run(2);
  ASSERT_OK(membership_->Leave(team[1]->fence(), "done", false));
  membership_->ReportExit(team[1]->exit(0));
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(MembershipTest, DeathWhileFormingGivesTheRoundUp) {
  Worker* a = Make(3, 0);
  Worker* b = Make(3, 1);
  Join(a);
  Join(b);
  membership_->ReportExit(b->exit(11));
  EXPECT_THAT(
      a->answers.at(0),
      StatusIs(absl::StatusCode::kAborted,
               AllOf(HasSubstr("host-a/1"), HasSubstr("killed by signal 11"))));
  EXPECT_EQ(Description().state, JobState::kEnded);
}

TEST_F(MembershipTest, DeathAfterTheConnectionBrokeGivesTheRoundUpToo) {
  Worker* a = Make(3, 0);
  Worker* b = Make(3, 1);
  Join(a);
  Join(b);
  membership_->Withdraw(b->join_id);
  EXPECT_THAT(a->answers, IsEmpty());
  membership_->ReportExit(b->exit(9));
  EXPECT_THAT(a->answers.at(0),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("host-a/1")));
  EXPECT_THAT(b->answers, IsEmpty());
}

TEST_F(MembershipTest, WithdrawnWorkerMayComeBack) {
  Worker* a = Make(2, 0);
  Worker* b = Make(2, 1);
  Join(a);
  Join(b);
  Worker* c = Make(2, 0, "other");
  Join(c);
  membership_->Withdraw(c->join_id);
  EXPECT_EQ(Description("other").state, JobState::kEnded);
  Join(c);
  EXPECT_EQ(Description("other").state, JobState::kForming);
  Join(Make(2, 1, "other"));
  EXPECT_OK(c->answers.at(0));
}

TEST_F(MembershipTest, ThoseThatStayDecideTheWorldSize) {
  Worker* a = Make(2, 0);
  Worker* wrong = Make(4, 2);
  Worker* b = Make(2, 1);
  Join(a);
  Join(wrong);
  Join(b);
  EXPECT_THAT(a->answers, IsEmpty());
  membership_->Withdraw(wrong->join_id);
  ASSERT_THAT(a->answers, testing::SizeIs(1));
  EXPECT_OK(a->answers[0]);
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(MembershipTest, SilenceForALeaseIsALoss) {
  const auto team = Run(2);
  Pass(absl::Seconds(9));
  Beat({team[0]});
  EXPECT_EQ(Description().state, JobState::kRunning);
  Pass(absl::Seconds(1));
  ExpectAborted(*team[0],
                "rank 1 (host-a/1, incarnation 0000000000000002) "
                "was lost: no sign of life for 10s");
}

// pp=2, dp=1: lists 0F0 0SEND_F0 0RECV_B0 0B0, and 1RECV_F0 1F0 1B0 1SEND_B0.
TEST_F(MembershipTest, ALossInAPipelineHasWhatTheMemberWasIn) {
  std::vector<Worker*> team;
  for (int slot = 0; slot < 2; ++slot) {
    team.push_back(Make(2, slot));
    team.back()->request.manifest.mesh = "pp=2";
    team.back()->request.manifest.terms = {{"pipeline", "1f1b"}};
    Join(team.back());
  }
  for (Worker* const worker : team) Attach(worker);
  const auto beat = [this](const Worker& worker, int action) {
    Progress progress;
    progress.pipeline = PipelinePlace{7, action, 1, absl::Seconds(1), {}};
    EXPECT_OK(membership_->Heartbeat(worker.attachment, progress));
  };
  beat(*team[0], 2);
  beat(*team[1], 1);
  membership_->ReportExit(team[1]->exit(9), [](const auto&) {});
  ExpectAborted(*team[0],
                "rank 1 (pp 1; host-a/1, incarnation 0000000000000002) was "
                "lost: killed by signal 9 (reported by its launcher); it was "
                "in 1F0 of its pipeline, and 1 rank waited for it");
}

TEST_F(MembershipTest, APausedCoordinatorGivesEachMemberALease) {
  const auto team = Run(2);
  membership_->Detach(team[1]->attachment);
  clock_.Advance(absl::Hours(1));
  membership_->Tick();
  EXPECT_EQ(Description().state, JobState::kRunning);
  Attach(team[1]);
  Pass(absl::Seconds(9));
  EXPECT_EQ(Description().state, JobState::kRunning);
  Beat({team[1]});
  Pass(absl::Seconds(1));
  ExpectAborted(*team[0], "rank 0");
}

TEST_F(MembershipTest, LostConnectionMayComeBackWithinTheGrace) {
  const auto team = Run(2);
  membership_->Detach(team[1]->attachment);
  EXPECT_EQ(Description().members[1].state, MemberState::kDetached);
  Pass(absl::Seconds(9));
  Beat({team[0]});
  Attach(team[1]);
  Pass(absl::Seconds(9));
  EXPECT_EQ(Description().state, JobState::kRunning);
  Beat(team);
  membership_->Detach(team[1]->attachment);
  Pass(absl::Seconds(9));
  Beat({team[0]});
  Pass(absl::Seconds(1));
  ExpectAborted(*team[0], "its connection broke");
}

TEST_F(MembershipTest, SecondAttachTakesThePlaceOfTheFirst) {
  const auto team = Run(1);
  const uint64_t first = team[0]->attachment;
  Attach(team[0]);
  ASSERT_THAT(team[0]->events, SizeIs(1));
  EXPECT_THAT(team[0]->events[0].status,
              StatusIs(absl::StatusCode::kCancelled, testing::_));
  membership_->Detach(first);  // news of the old connection
  EXPECT_EQ(Description().members[0].state, MemberState::kAttached);
}

TEST_F(MembershipTest, FailedLeaveEndsTheGenerationForAll) {
  const auto team = Run(2);
  ASSERT_OK(membership_->Leave(team[1]->fence(), "loss is NaN", true));
  ExpectAborted(*team[0], "failed: loss is NaN");
  ASSERT_THAT(team[1]->events, SizeIs(1));
  EXPECT_OK(team[1]->events[0].status);
}

TEST_F(MembershipTest, LongReasonIsCutBetweenLetters) {
  options_.max_reason_bytes = 10;
  Restart();
  const auto team = Run(2);
  // Bytes 6 and 7 are one letter.
  ASSERT_OK(membership_->Leave(team[1]->fence(), "abcdef\u00e9 and on", true));
  EXPECT_THAT(team[0]->events.at(0).reason, EndsWith("failed: abcdef..."));
}

TEST_F(MembershipTest, WhenAllHaveLeftTheNextJoinBeginsANewRound) {
  const auto team = Run(2);
  ASSERT_OK(membership_->Leave(team[0]->fence(), "done", false));
  ASSERT_OK(membership_->Leave(team[0]->fence(), "done", false));
  ASSERT_THAT(team[1]->events, SizeIs(1));
  EXPECT_EQ(team[1]->events[0].kind, FlatEvent::Kind::kMemberLeft);
  EXPECT_EQ(team[1]->events[0].member->rank, 0);
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(observer_.left, ElementsAre("job 1 0"));
  Pass(absl::Seconds(5));
  ASSERT_OK(membership_->Leave(team[1]->fence(), "done", false));
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(Description().last_event, HasSubstr("cleanly"));
  ASSERT_THAT(observer_.ended, SizeIs(1));

  Worker* next = Make(1, 0);
  next->request.launcher_id = ++launcher_;
  next->request.manifest.hook = "bf16";
  Join(next);
  ASSERT_OK(next->answers.at(0));
  EXPECT_EQ(next->joined().generation, Generation(2));
  EXPECT_EQ(next->joined().plan.hook, "bf16");
}

TEST_F(MembershipTest, SurvivorsKeepTheirRanks) {
  const auto team = Run(3);
  membership_->ReportExit(team[0]->exit(9));
  Worker* spare = Make(3, 0, "job", "host-z");
  Join(spare);
  Join(team[2]);
  Join(team[1]);
  ASSERT_OK(spare->answers.at(0));
  EXPECT_EQ(spare->joined().rank, 0);
  EXPECT_EQ(team[1]->joined().rank, 1);
  EXPECT_EQ(team[2]->joined().rank, 2);
}

TEST_F(MembershipTest, AdmitReturnsTheCaller) {
  const auto team = Run(2);
  ASSERT_OK_AND_ASSIGN(const Caller caller,
                       membership_->Admit(team[1]->fence()));
  EXPECT_EQ(caller.rank, 1);
  EXPECT_EQ(caller.world_size, 2);
  EXPECT_EQ(caller.identity.ToString(), "host-a/1");
}

TEST_F(MembershipTest, EachStaleFieldOfAFenceIsNamed) {
  const auto team = Run(2);
  const std::vector<std::pair<std::string, std::function<void(Fence*)>>> cases =
      {
          {"cluster_id", [](Fence* f) { f->cluster_id = "other"; }},
          {"term", [](Fence* f) { f->term = Term(77); }},
          {"generation", [](Fence* f) { f->generation = Generation(77); }},
          {"incarnation", [](Fence* f) { f->incarnation = Incarnation(77); }},
      };
  for (const auto& [field, spoil] : cases) {
    Fence fence = team[0]->fence();
    spoil(&fence);
    const absl::Status status = membership_->Admit(fence).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("stale " + field)));
    EXPECT_EQ(DetailOf(status).stale_fence().field(), field);
    EXPECT_NE(DetailOf(status).stale_fence().expected(),
              DetailOf(status).stale_fence().actual());
  }
  Fence fence = team[0]->fence();
  fence.job = "ghost";
  EXPECT_THAT(membership_->Admit(fence),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ghost")));
}

TEST_F(MembershipTest, OperatorsNeedTheClusterAndTheTermOnly) {
  Fence fence;
  fence.cluster_id = membership_->cluster_id();
  fence.term = membership_->term();
  EXPECT_OK(membership_->AdmitOperator(fence));
  fence.term = Term(77);
  EXPECT_EQ(DetailOf(membership_->AdmitOperator(fence)).stale_fence().field(),
            "term");
  fence.cluster_id = "other";
  EXPECT_EQ(DetailOf(membership_->AdmitOperator(fence)).stale_fence().field(),
            "cluster_id");
  const auto team = Run(1);
  EXPECT_THAT(
      membership_->AdmitOperator(team[0]->fence()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("operator")));
}

TEST_F(MembershipTest, AProposedPlanStaysOnlyIfAWorkerMakesAStepWithIt) {
  const auto rejoin = [this](const std::vector<Worker*>& team) {
    membership_->ReportExit(team[0]->exit(9));
    return Run(1)[0];
  };
  Worker* worker = Run(1)[0];
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(1, "nosuchhook", -1)));
  worker = rejoin({worker});
  EXPECT_EQ(worker->joined().plan.hook, "nosuchhook");
  worker = rejoin({worker});
  EXPECT_EQ(worker->joined().plan.hook, "allreduce");
  EXPECT_EQ(worker->joined().plan.version, 3);

  ASSERT_OK(plans_->Propose("job", 3, MakePlan(1, "bf16", -1)));
  worker = rejoin({worker});
  ASSERT_OK(membership_->Heartbeat(worker->attachment, MakeProgress(1, 0)));
  worker = rejoin({worker});
  EXPECT_EQ(worker->joined().plan.hook, "bf16");
}

TEST_F(MembershipTest, AProposedPlanStaysIfAllLeaveCleanly) {
  Worker* worker = Run(1)[0];
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(1, "bf16", -1)));
  for (int round = 0; round < 2; ++round) {
    ASSERT_OK(membership_->Leave(worker->fence(), "done", false));
    ++launcher_;
    worker = Run(1)[0];
    EXPECT_EQ(worker->joined().plan.hook, "bf16");
  }
}

TEST_F(MembershipTest, StaleGenerationReportsWhyItEnded) {
  const auto team = Run(2);
  membership_->ReportExit(team[1]->exit(9));
  EXPECT_THAT(membership_->Admit(team[0]->fence()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("killed by signal 9")));
}

TEST_F(MembershipTest, NumbersAreNotReusedAfterARestart) {
  const auto team = Run(2);
  const Fence old = team[0]->fence();
  Restart();
  EXPECT_EQ(membership_->cluster_id(), old.cluster_id);
  EXPECT_EQ(membership_->term(), Term(2));
  const absl::Status status = membership_->Admit(old).status();
  EXPECT_EQ(DetailOf(status).stale_fence().field(), "term");
  const auto again = Run(2);
  EXPECT_EQ(again[0]->joined().generation, Generation(2));
  EXPECT_EQ(again[0]->joined().term, Term(2));
}

TEST_F(MembershipTest, NoGenerationBeginsThatIsNotOnDisk) {
  Worker* a = Make(2, 0);
  Worker* b = Make(2, 1);
  Join(a);
  store_.FailWrites(absl::UnavailableError("disk full"));
  Join(b);
  EXPECT_THAT(a->answers.at(0),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_THAT(b->answers.at(0),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_EQ(Description().state, JobState::kEnded);
  ASSERT_OK_AND_ASSIGN(const ClusterRecords cluster,
                       ReadClusterRecords(store_));
  EXPECT_EQ(cluster.next_generation, 1);
}

TEST_F(MembershipTest, ProgressIsDescribed) {
  const auto team = Run(1);
  ASSERT_OK(membership_->Heartbeat(team[0]->attachment, MakeProgress(5, 17)));
  Pass(absl::Seconds(1));
  const MemberDescription member = Description().members.at(0);
  EXPECT_EQ(member.progress.step, 5);
  EXPECT_EQ(member.progress.collective_sequence, 17);
  EXPECT_EQ(member.progress.payload_bytes, 100);
  EXPECT_EQ(member.progress.wire_bytes, 120);
  EXPECT_EQ(member.silence, absl::Seconds(1));
  EXPECT_EQ(member.state, MemberState::kAttached);
}

TEST_F(MembershipTest, DescribeListsAllJobsOrOne) {
  Run(1, "a");
  Run(1, "b");
  EXPECT_THAT(*membership_->Describe(""), SizeIs(2));
  EXPECT_THAT(*membership_->Describe("b"), SizeIs(1));
  EXPECT_THAT(membership_->Describe("ghost"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ghost")));
}

TEST_F(MembershipTest, MalformedJoinsAreRefused) {
  const std::vector<std::pair<std::string, std::function<void(JoinRequest*)>>>
      cases = {
          {"job name", [](JoinRequest* r) { r->job = ""; }},
          {"job name", [](JoinRequest* r) { r->job = "a b"; }},
          {"job name", [](JoinRequest* r) { r->job.assign(129, 'x'); }},
          {"node", [](JoinRequest* r) { r->identity.node = ""; }},
          {"node", [](JoinRequest* r) { r->identity.node = "a\nb"; }},
          {"node", [](JoinRequest* r) { r->identity.node.assign(256, 'x'); }},
          {"slot", [](JoinRequest* r) { r->identity.slot = -1; }},
          {"incarnation",
           [](JoinRequest* r) { r->incarnation = Incarnation(0); }},
          {"timeout", [](JoinRequest* r) { r->timeout = absl::Seconds(0); }},
          {"address", [](JoinRequest* r) { r->address.assign(256, 'x'); }},
          {"topology", [](JoinRequest* r) { r->topology = {"a b"}; }},
          {"topology",
           [](JoinRequest* r) { r->topology = {std::string(65, 'x')}; }},
          {"host", [](JoinRequest* r) { r->host.assign(256, 'x'); }},
          {"world_size", [](JoinRequest* r) { r->manifest.world_size = 0; }},
      };
  for (const auto& [what, spoil] : cases) {
    Worker* worker = Make(2, 0);
    spoil(&worker->request);
    Join(worker);
    EXPECT_THAT(worker->answers.at(0),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  }
  EXPECT_THAT(*membership_->Describe(""), IsEmpty());
}

TEST_F(MembershipTest, TopologyKeysAreLimited) {
  Worker* worker = Make(2, 0);
  worker->request.topology.assign(17, "rack");
  Join(worker);
  EXPECT_THAT(worker->answers.at(0),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_topology_keys is 16")));
}

TEST_F(MembershipTest, ACallWaitsForARoundForTheLimitAtMost) {
  options_.max_join_timeout = absl::Seconds(40);
  Restart();
  Worker* worker = Make(2, 0);
  worker->request.timeout = absl::InfiniteDuration();
  Join(worker);
  Pass(absl::Seconds(39));
  EXPECT_THAT(worker->answers, IsEmpty());
  Pass(absl::Seconds(1));
  ASSERT_THAT(worker->answers, SizeIs(1));
  EXPECT_THAT(worker->answers[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
}

TEST_F(MembershipTest, OldestEndedJobIsRemovedAndRunningOnesAreNot) {
  options_.max_jobs = 2;
  Restart();
  const auto a = Run(1, "a");
  Run(1, "b");
  Worker* c = Make(1, 0, "c");
  Join(c);
  EXPECT_THAT(c->answers.at(0), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("max_jobs is 2")));
  ASSERT_OK(membership_->Leave(a[0]->fence(), "done", false));
  Join(c);
  EXPECT_OK(c->answers.at(1));
  EXPECT_FALSE(membership_->Describe("a").ok());
}

TEST_F(MembershipTest, AForgottenJobTakesItsPlanAlong) {
  options_.max_jobs = 1;
  Restart();
  const auto gone = Run(1, "gone");
  ASSERT_OK(plans_->Propose("gone", 1, MakePlan(2, "bf16", -1)));
  ASSERT_OK(membership_->Leave(gone[0]->fence(), "done", false));
  EXPECT_OK(plans_->Get("gone")) << "until it is forgotten";
  Run(1, "here");
  EXPECT_FALSE(plans_->Get("gone").ok());
  const auto tables = store_.Tables("plan.");
  for (const std::string& table : *tables) {
    EXPECT_FALSE(store_.Get(table, "gone").ok()) << table;
  }
  Restart();
  EXPECT_FALSE(plans_->Get("gone").ok());
  EXPECT_OK(plans_->Get("here"));
}

// A store of a coordinator that did not delete them.
TEST_F(MembershipTest, PlansOfForgottenJobsAreDroppedAtTheStart) {
  Run(1, "here");
  for (const char* table : {"plan.current", "plan.manifest"}) {
    ASSERT_OK(store_.Put(table, "gone", *store_.Get(table, "here")));
  }
  Restart();
  EXPECT_FALSE(plans_->Get("gone").ok());
  EXPECT_OK(plans_->Get("here"));
  EXPECT_FALSE(store_.Get("plan.current", "gone").ok());
}

// Others come and go while it waits for its last worker.
TEST_F(MembershipTest, APlanBetweenTwoGenerationsOutlivesManyForgottenJobs) {
  options_.max_jobs = 3;
  Restart();
  membership_->AddObserver(plans_.get());
  const auto team = Run(2);
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(8, "bf16", -1)));
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  for (int i = 0; i < 2100; ++i) {
    const auto other = Run(1, absl::StrCat("other-", i));
    ASSERT_OK(membership_->Leave(other[0]->fence(), "done", false));
  }
  Worker* const replacement = Make(2, 1);
  Join(replacement);
  ASSERT_OK(replacement->answers.at(0));
  EXPECT_EQ(replacement->joined().plan.version, 2);
  EXPECT_EQ(replacement->joined().plan.hook, "bf16");
}

TEST_F(MembershipTest, LeavingTwiceOrUnknownFails) {
  const auto team = Run(2);
  membership_->ReportExit(team[1]->exit(9));
  EXPECT_THAT(
      membership_->Leave(team[1]->fence(), "late", false),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("evicted already")));
  EXPECT_OK(membership_->Leave(team[0]->fence(), "aborted", false));
}

TEST_F(MembershipTest, ShutdownAnswersEverybody) {
  const auto team = Run(1, "running");
  Worker* waiting = Make(2, 0);
  Join(waiting);
  membership_->Shutdown();
  EXPECT_THAT(waiting->answers.at(0),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_THAT(team[0]->events.at(0).status,
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_THAT(membership_->Admit(team[0]->fence()),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  ASSERT_THAT(observer_.ended, SizeIs(1));
  EXPECT_THAT(observer_.ended[0].reason,
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

schedule::Message MakeDirected(int rank, int64_t round) {
  schedule::Message message;
  message.rank = rank;
  message.kind = schedule::Message::Kind::kDecision;
  message.round = round;
  return message;
}

TEST_F(MembershipTest, EventsAreSentInOrderToTheirMembers) {
  const std::vector<Worker*> team = Run(3);
  membership_->Detach(team[2]->attachment);
  const Generation generation = team[0]->joined().generation;
  membership_->SendMessages(
      "job", generation,
      {MakeDirected(schedule::Message::kAllRanks, 1), MakeDirected(1, 2),
       MakeDirected(7, 3), MakeDirected(schedule::Message::kAllRanks, 4)});
  const auto rounds = [](const Worker& worker) {
    std::vector<int64_t> result;
    for (const FlatEvent& event : worker.events) {
      result.push_back(event.round);
    }
    return result;
  };
  EXPECT_THAT(rounds(*team[0]), testing::ElementsAre(1, 4));
  EXPECT_THAT(rounds(*team[1]), testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(team[2]->events, IsEmpty());
  membership_->SendMessages("job", Generation(generation.value() + 1),
                            {MakeDirected(schedule::Message::kAllRanks, 5)});
  EXPECT_THAT(team[0]->events, SizeIs(2));
}

TEST_F(MembershipTest, AnAbortedGenerationEndsWithTheReasonAndItsDetail) {
  const std::vector<Worker*> team = Run(2);
  const Generation generation = team[0]->joined().generation;
  v1::ErrorDetail detail;
  detail.mutable_schedule_mismatch()->set_round(9);
  const absl::Status reason =
      WithDetail(absl::AbortedError("ranks differ"), detail);
  membership_->AbortGeneration("job", Generation(generation.value() + 1),
                               reason);
  EXPECT_THAT(team[0]->events, IsEmpty());
  membership_->AbortGeneration("job", generation, reason);
  for (const Worker* worker : team) {
    ExpectAborted(*worker, "ranks differ");
    EXPECT_EQ(DetailOf(worker->events[0].status).schedule_mismatch().round(),
              9);
  }
  EXPECT_EQ(Description().last_event, "ranks differ");
  ASSERT_THAT(observer_.ended, SizeIs(1));
}

TEST_F(MembershipTest, AChangedPlanIsDescribed) {
  const std::vector<Worker*> team = Run(1);
  schedule::Plan plan = team[0]->joined().plan;
  plan.version = 7;
  membership_->NotePlan("job", team[0]->joined().generation, plan);
  EXPECT_EQ(Description().plan.version, 7);
}

TEST_F(MembershipTest, AnyMessageOfAMemberIsASignOfLife) {
  const std::vector<Worker*> team = Run(2);
  for (int second = 0; second < 20; ++second) {
    Pass(absl::Seconds(1));
    membership_->NoteSigns("job", team[0]->joined().generation,
                           {clock_.Now(), clock_.Now()});
  }
  EXPECT_EQ(Description().state, JobState::kRunning);
  // What is older than the last sign changes nothing.
  membership_->NoteSigns("job", team[0]->joined().generation,
                         {absl::UnixEpoch(), absl::UnixEpoch()});
  Pass(absl::Seconds(5));
  EXPECT_EQ(Description().state, JobState::kRunning);
  Pass(absl::Seconds(6));
  EXPECT_EQ(Description().state, JobState::kEnded);
}

TEST_F(MembershipTest, AMemberThatReportsTheSameAgainIsIdle) {
  const std::vector<Worker*> team = Run(1);
  const Generation generation = team[0]->joined().generation;
  Progress progress = MakeProgress(5, 17);
  progress.activity = std::string(5000, 'x');
  for (int second = 0; second < 4; ++second) {
    Pass(absl::Seconds(1));
    ASSERT_OK(membership_->Heartbeat(team[0]->attachment, progress));
  }
  ASSERT_OK_AND_ASSIGN(const auto members,
                       membership_->MembersOf("job", generation));
  ASSERT_THAT(members, SizeIs(1));
  EXPECT_EQ(members[0].idle, absl::Seconds(3));
  EXPECT_EQ(members[0].silence, absl::ZeroDuration());
  EXPECT_THAT(members[0].progress.activity, SizeIs(128));
}

TEST_F(MembershipTest, MembersAreKnownUntilTheNextGeneration) {
  std::vector<Worker*> team = Run(2);
  const Generation generation = team[0]->joined().generation;
  membership_->AbortGeneration("job", generation, absl::AbortedError("over"));
  Join(Make(2, 0));
  EXPECT_EQ(Description().state, JobState::kForming);
  ASSERT_OK_AND_ASSIGN(const auto members,
                       membership_->MembersOf("job", generation));
  EXPECT_THAT(members, SizeIs(2));
  Join(Make(2, 1));
  EXPECT_THAT(membership_->MembersOf("job", generation),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("not the last")));
}

TEST_F(MembershipTest, AMemberThatOtherHostsCannotReachIsFound) {
  const auto unreachable = [this](const std::string& job,
                                  const std::string& other_host,
                                  const std::string& address) {
    Worker* const first = Make(2, 0, job);
    Worker* const second = Make(2, 1, job);
    second->request.host = other_host;
    second->request.address = address;
    Join(first);
    Join(second);
    return second->joined().unreachable;
  };
  EXPECT_EQ(unreachable("a", "host-b", "127.0.1.1"), 1);
  EXPECT_EQ(unreachable("b", "host-b", "localhost"), 1);
  EXPECT_EQ(unreachable("c", "host-b", "10.0.0.1"), -1);
  EXPECT_EQ(unreachable("d", "host-a", "127.0.1.1"), -1) << "one host";
}

TEST_F(MembershipTest, TheLossOfAMemberNamesItsCoordinates) {
  Worker* const one = Make(2, 0);
  Worker* const other = Make(2, 1);
  for (Worker* const worker : {one, other}) {
    worker->request.manifest.mesh = "dp=2";
    Join(worker);
  }
  Attach(one);
  EXPECT_EQ(one->joined().members->at(1).coordinates, "dp 1");
  membership_->ReportExit(other->exit(9));
  EXPECT_THAT(Description().last_event,
              HasSubstr("rank 1 (dp 1; host-a/1, incarnation"));
}

TEST_F(MembershipTest, TheFreeAxisOfAnElasticJobFollowsItsSize) {
  std::vector<Worker*> team;
  for (int slot = 0; slot < 3; ++slot) {
    team.push_back(MakeElastic(2, 3, slot));
    team.back()->request.manifest.mesh = "shard=*";
    Join(team.back());
  }
  EXPECT_EQ(Description().mesh, "shard=3");
  for (Worker* worker : team) Attach(worker);
  membership_->ReportExit(team[2]->exit(9));
  Rejoin(team[0]);
  EXPECT_EQ(Description().mesh, "shard=*") << "it is to form";
  Rejoin(team[1]);
  EXPECT_EQ(Description().mesh, "shard=2");
  EXPECT_EQ(Description().members[1].member.coordinates, "shard 1");
}

}  // namespace
}  // namespace coxswain::server
