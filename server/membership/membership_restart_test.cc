// What the membership knows after a restart of the coordinator.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "base/version.h"
#include "proto/state.pb.h"
#include "schedule/plan.h"
#include "server/membership/library_version.h"
#include "server/membership/member_proto.h"
#include "server/membership/membership_fixture.h"
#include "server/state/cluster_records.h"
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
using testing::SizeIs;

using RestartTest = MembershipTest;

TEST_F(RestartTest, ARunningGenerationGoesOn) {
  const auto team = RunElastic(2, 4, 4);
  ASSERT_OK(Leave(team[1], false, "drained"));
  const Fence old = team[0]->fence();
  Restart();

  ASSERT_THAT(observer_.resumed, SizeIs(2));
  ASSERT_THAT(observer_.resumed[1], SizeIs(1));
  const GenerationResumed& resumed = observer_.resumed[1][0];
  EXPECT_EQ(resumed.begin.job, "job");
  EXPECT_EQ(resumed.begin.generation, Generation(1));
  EXPECT_EQ(resumed.begin.world_size, 4);
  EXPECT_EQ(resumed.begin.plan.hook, "allreduce");
  EXPECT_THAT(resumed.left, ElementsAre(1));
  const JobDescription job = Description();
  EXPECT_EQ(job.state, JobState::kRunning);
  EXPECT_EQ(job.min_world_size, 2);
  EXPECT_EQ(job.world_size, 4);
  EXPECT_EQ(job.plan.version, 1);
  EXPECT_EQ(job.members[0].state, MemberState::kDetached);
  EXPECT_EQ(job.members[1].state, MemberState::kLeft);

  EXPECT_EQ(DetailOf(membership_->Admit(old).status()).stale_fence().field(),
            "term");
  Attach(team[0]);
  Fence fence = old;
  fence.term = membership_->term();
  ASSERT_OK_AND_ASSIGN(const Caller caller, membership_->Admit(fence));
  EXPECT_EQ(caller.world_size, 4);
  // A repeated Leave, and one that is new.
  Fence left = team[1]->fence();
  left.term = membership_->term();
  EXPECT_OK(membership_->Leave(left, "drained", false));
  EXPECT_OK(membership_->Leave(fence, "done", false));
  EXPECT_EQ(Description().members[0].state, MemberState::kLeft);
}

// Workers are replaced one after the other by those of a newer patch, over a
// state in which a former coordinator has kept the whole version.
TEST_F(RestartTest, AGenerationKeepsItsMesh) {
  std::vector<Worker*> team;
  for (int slot = 0; slot < 4; ++slot) {
    team.push_back(Make(4, slot, "job", slot < 3 ? "host-a" : "host-b"));
    team.back()->request.manifest.mesh = "dp=*,shard=2";
    Join(team.back());
  }
  for (Worker* worker : team) Attach(worker);
  const auto expect_mesh = [&] {
    const JobDescription job = Description();
    EXPECT_EQ(job.mesh, "dp=2,shard=2");
    EXPECT_THAT(job.placement, HasSubstr("shard=2 spans hosts: 1 of 2 groups"));
    EXPECT_EQ(job.members[3].member.coordinates, "dp 1, shard 1");
  };
  expect_mesh();
  Restart();
  expect_mesh();
  ASSERT_THAT(observer_.resumed[1], SizeIs(1));
  EXPECT_EQ(observer_.resumed[1][0].begin.mesh.ToString(), "dp=2,shard=2");
}

TEST_F(RestartTest, AGenerationMayHaveSeveralPatchesOfOneSeries) {
  const std::string series = LibrarySeries(kVersion);
  std::vector<Worker*> team;
  for (int slot = 0; slot < 3; ++slot) {
    team.push_back(MakeElastic(2, 3, slot));
    team.back()->request.manifest.settings["library_version"] = kVersion;
    Join(team.back());
  }
  for (Worker* worker : team) Attach(worker);
  ASSERT_OK_AND_ASSIGN(const auto records, store_.List("manifest/1"));
  ASSERT_THAT(records, SizeIs(1));
  ASSERT_OK(store_.Apply(StateBatch().Put(
      "manifest/1", records[0].first,
      ToProto(team[0]->request.manifest).SerializeAsString())));
  Restart();

  Attach(team[0]);
  Attach(team[1]);
  Worker* const patched = MakeElastic(2, 3, 2);
  patched->request.manifest.settings["library_version"] = series + ".77";
  Join(patched);  // In the place of the third.
  Rejoin(team[0]);
  Rejoin(team[1]);
  ASSERT_THAT(patched->answers, SizeIs(1));
  ASSERT_OK(patched->answers[0]);
  EXPECT_EQ(patched->joined().generation, Generation(2));
  EXPECT_THAT(*patched->joined().members, SizeIs(3));
}

TEST_F(RestartTest, MembersHaveAGraceFromThenOn) {
  const auto team = RunElastic(2, 4, 3);
  clock_.Advance(absl::Hours(1));
  Restart();
  Attach(team[0]);
  Attach(team[2]);
  Pass(absl::Seconds(9));
  Beat({team[0], team[2]});
  EXPECT_EQ(Description().state, JobState::kRunning);
  Pass(absl::Seconds(1));
  EXPECT_THAT(Description().last_event,
              AllOf(HasSubstr("rank 1"), HasSubstr("did not come back")));
  Rejoin(team[0]);
  Rejoin(team[2]);
  EXPECT_EQ(team[0]->joined().generation, Generation(2));
  EXPECT_EQ(team[0]->joined().previous_world_size, 3);
}

TEST_F(RestartTest, AMemberOfALaterTermIsNotifiedThatThisCoordinatorIsOld) {
  const auto team = Run(1);
  Fence fence = team[0]->fence();
  fence.term = Term(2);
  EXPECT_THAT(membership_->Attach(fence, [](const AttachEvent&) {}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("a newer coordinator exists")));
}

TEST_F(RestartTest, AttachLooksAtAllButTheTerm) {
  const auto team = RunElastic(1, 2, 2);
  Restart();
  const std::vector<std::pair<std::string, std::function<void(Fence*)>>> cases =
      {
          {"cluster_id", [](Fence* f) { f->cluster_id = "other"; }},
          {"generation", [](Fence* f) { f->generation = Generation(77); }},
          {"incarnation", [](Fence* f) { f->incarnation = Incarnation(77); }},
      };
  for (const auto& [field, spoil] : cases) {
    Fence fence = team[0]->fence();
    spoil(&fence);
    const absl::Status status =
        membership_->Attach(fence, [](const AttachEvent&) {}).status();
    EXPECT_EQ(DetailOf(status).stale_fence().field(), field);
  }
}

TEST_F(RestartTest, LaunchersReportMembersOfThatGeneration) {
  const auto team = RunElastic(1, 2, 2);
  Restart();
  Attach(team[0]);
  ExitReport wrong = team[1]->exit(9);
  wrong.launcher_id = 5;
  membership_->ReportExit(wrong);
  EXPECT_EQ(Description().state, JobState::kRunning);
  membership_->ReportExit(team[1]->exit(9));
  ExpectAborted(*team[0], "killed by signal 9");
}

TEST_F(RestartTest, WhoseAnswerWasLostGetsItAgain) {
  const auto team = RunElastic(1, 3, 3);
  membership_->ReportExit(team[0]->exit(9));
  Rejoin(team[1]);
  Rejoin(team[2]);
  const JoinResult first = team[1]->joined();
  Restart();
  team[1]->request.after_generation = Generation(1);
  Join(team[1]);
  ASSERT_THAT(team[1]->answers, SizeIs(3));
  const JoinResult& again = team[1]->joined();
  EXPECT_EQ(again.term, Term(2));
  EXPECT_EQ(again.generation, first.generation);
  EXPECT_EQ(again.rank, first.rank);
  EXPECT_EQ(again.plan.version, first.plan.version);
  EXPECT_EQ(again.previous, Generation(1));
  EXPECT_EQ(again.reason, first.reason);
  ASSERT_THAT(*again.lost, SizeIs(1));
  EXPECT_EQ(again.lost->front().member.ToString(),
            first.lost->front().member.ToString());
  EXPECT_EQ(again.lost->front().reason, first.lost->front().reason);
  ASSERT_THAT(*again.members, SizeIs(2));
  EXPECT_EQ((*again.members)[0].address, "host-a:1234");
}

TEST_F(RestartTest, SurvivorsOfAnEndedGenerationAreStillExpected) {
  const auto team = RunElastic(2, 3, 3);
  Progress progress = MakeProgress(3, 3);
  progress.error_norm = 2.5;
  progress.error_step = 3;
  ASSERT_OK(membership_->Heartbeat(team[0]->attachment, progress));
  membership_->ReportExit(team[0]->exit(9));
  Restart();
  EXPECT_THAT(observer_.resumed.back(), IsEmpty());
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(membership_->Attach(team[1]->fence(), [](const auto&) {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("killed by signal 9")));
  Worker* spare = MakeElastic(2, 3, 7);
  Join(spare);
  Rejoin(team[2]);
  EXPECT_EQ(Description().state, JobState::kForming);
  Rejoin(team[1]);
  ASSERT_OK(spare->answers.at(0));
  EXPECT_EQ(spare->joined().rank, 0);
  EXPECT_EQ(team[1]->joined().rank, 1);
  EXPECT_EQ(team[2]->joined().rank, 2);
  EXPECT_EQ(spare->joined().lost->front().error_norm, 2.5);
  EXPECT_EQ(spare->joined().lost->front().error_step, 3);
}

TEST_F(RestartTest, WhatAnEndedGenerationWasIsStillShown) {
  const auto team = RunElastic(2, 3, 3);
  ASSERT_OK(membership_->Heartbeat(team[0]->attachment, MakeProgress(20, 1)));
  ASSERT_OK(membership_->Heartbeat(team[1]->attachment, MakeProgress(21, 1)));
  ASSERT_OK(membership_->Heartbeat(team[2]->attachment, MakeProgress(22, 1)));
  ASSERT_OK(Leave(team[2], false, "drained"));
  membership_->ReportExit(team[0]->exit(9));
  const JobDescription before = Description();
  clock_.Advance(absl::Hours(1));
  Restart();

  const JobDescription job = Description();
  EXPECT_EQ(job.state, JobState::kEnded);
  EXPECT_EQ(job.last_event, before.last_event);
  EXPECT_EQ(job.last_event_at, before.last_event_at);
  EXPECT_EQ(job.last_event_age, absl::Hours(1));
  EXPECT_EQ(job.step, 22);
  ASSERT_THAT(job.members, SizeIs(3));
  EXPECT_EQ(job.members[0].state, MemberState::kLost);
  EXPECT_EQ(job.members[0].progress.step, 20);
  EXPECT_THAT(job.members[0].departure, HasSubstr("killed by signal 9"));
  EXPECT_EQ(job.members[1].state, MemberState::kDetached);
  EXPECT_EQ(job.members[1].progress.step, 0) << "it was not kept";
  EXPECT_EQ(job.members[2].state, MemberState::kLeft);
  EXPECT_EQ(job.members[2].progress.step, 22);
  EXPECT_EQ(job.members[2].departure, "drained");
  for (const MemberDescription& member : job.members) {
    EXPECT_TRUE(member.restored);
    EXPECT_EQ(member.last_contact, absl::InfinitePast());
  }
}

TEST_F(RestartTest, OfAFinishedJobItsLastStepStays) {
  const auto team = Run(1);
  ASSERT_OK(membership_->Heartbeat(team[0]->attachment, MakeProgress(20, 1)));
  ASSERT_OK(Leave(team[0], false));
  EXPECT_EQ(Description().step, 20);
  Restart();
  EXPECT_THAT(Description().members, IsEmpty());
  EXPECT_EQ(Description().step, 20);
  launcher_ = 8;
  Run(1);
  EXPECT_EQ(Description().step, 0) << "of another generation";
}

TEST_F(RestartTest, AMemberThatComesBackIsKnownAgain) {
  const auto team = Run(1);
  EXPECT_FALSE(Description().members[0].restored);
  Restart();
  EXPECT_TRUE(Description().members[0].restored);
  Attach(team[0]);
  EXPECT_TRUE(Description().members[0].restored) << "not where it is";
  ASSERT_OK(membership_->Heartbeat(team[0]->attachment, MakeProgress(20, 1)));
  EXPECT_FALSE(Description().members[0].restored);
}

// As a coordinator of before has left it.
TEST_F(RestartTest, WhenARecordWithoutATimeEndedIsNotKnown) {
  const auto team = Run(1);
  ASSERT_OK(Leave(team[0], false));
  state::v1::Job job;
  ASSERT_TRUE(job.ParseFromString(store_.Get("jobs", "job").value_or("")));
  EXPECT_GT(job.last_event_unix_ms(), 0);
  job.clear_last_event_unix_ms();
  ASSERT_OK(store_.Put("jobs", "job", job.SerializeAsString()));
  Restart();
  EXPECT_THAT(Description().last_event, HasSubstr("has left cleanly"));
  EXPECT_EQ(Description().last_event_at, absl::InfinitePast());
}

TEST_F(RestartTest, AnEndThatLiesAheadByThisMachinesCalendarIsNow) {
  const auto team = Run(1);
  ASSERT_OK(Leave(team[0], false));
  state::v1::Job job;
  ASSERT_TRUE(job.ParseFromString(store_.Get("jobs", "job").value_or("")));
  job.set_last_event_unix_ms(job.last_event_unix_ms() + 60'000);
  ASSERT_OK(store_.Put("jobs", "job", job.SerializeAsString()));
  Restart();
  EXPECT_EQ(Description().last_event_age, absl::ZeroDuration());
}

TEST_F(RestartTest, AJobThatWasLeftByAllHasEnded) {
  auto team = RunElastic(1, 2, 2);
  ASSERT_OK(Leave(team[0], true));
  // The coordinator dies after the departure, and before the end.
  store_.writes_left = 1;
  ASSERT_OK(Leave(team[1], true));
  store_.writes_left = std::numeric_limits<int64_t>::max();
  Restart();
  EXPECT_THAT(observer_.resumed.back(), IsEmpty());
  EXPECT_THAT(Description().last_event, HasSubstr("2 of them for the next"));
  Rejoin(team[0]);
  Rejoin(team[1]);
  EXPECT_EQ(team[0]->joined().generation, Generation(2));

  for (Worker* worker : team) Attach(worker);
  for (Worker* worker : team) ASSERT_OK(Leave(worker, false));
  EXPECT_THAT(*store_.Tables("members/"), IsEmpty());
  EXPECT_THAT(*store_.Tables("manifest/"), IsEmpty());
  Restart();
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(Description().last_event, HasSubstr("have left cleanly"));
}

TEST_F(RestartTest, AnEndThatCouldNotBeWrittenIsWrittenLater) {
  const auto team = RunElastic(1, 3, 3);
  store_.FailWrites(absl::UnavailableError("disk full"));
  membership_->ReportExit(team[0]->exit(9));
  EXPECT_EQ(Description().state, JobState::kEnded);
  store_.FailWrites(absl::OkStatus());
  Pass(absl::Seconds(1));
  Restart();
  EXPECT_THAT(observer_.resumed.back(), IsEmpty());
  EXPECT_EQ(Description().members[0].state, MemberState::kLost);
  EXPECT_EQ(Description().members[1].state, MemberState::kDetached);
}

// All know that it ended; the coordinator died before it was written.
TEST_F(RestartTest, MembersNotifiedOfTheEndComeBackAllTheSame) {
  const auto team = RunElastic(1, 3, 3);
  store_.FailWrites(absl::UnavailableError("it dies"));
  membership_->ReportExit(team[0]->exit(9));
  store_.FailWrites(absl::OkStatus());
  Restart();
  EXPECT_EQ(Description().state, JobState::kRunning);
  Rejoin(team[1]);
  Rejoin(team[2]);
  EXPECT_THAT(team[1]->answers, SizeIs(1));
  Pass(options_.reattach_grace);
  ASSERT_THAT(team[1]->answers, SizeIs(2));
  ASSERT_OK(team[1]->answers[1]);
  EXPECT_THAT(*team[1]->joined().members, SizeIs(2));
}

TEST_F(RestartTest, ATrialIsNotJudgedByWhatIsNotKnown) {
  Worker* worker = Run(1)[0];
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(1, "bf16", -1)));
  membership_->ReportExit(worker->exit(9));
  worker = Run(1)[0];
  ASSERT_EQ(worker->joined().plan.hook, "bf16");
  ASSERT_OK(membership_->Heartbeat(worker->attachment, MakeProgress(1, 0)));
  Restart();
  membership_->ReportExit(worker->exit(9));
  worker = Run(1)[0];
  EXPECT_EQ(worker->joined().plan.hook, "bf16");
}

TEST_F(RestartTest, NothingIsKeptOfGenerationsThatAreOver) {
  for (int round = 0; round < 3; ++round) {
    const auto team = RunElastic(1, 2, 2);
    membership_->ReportExit(team[0]->exit(9));
  }
  EXPECT_THAT(*store_.Tables("members/"), ElementsAre("members/3"));
  EXPECT_THAT(*store_.Tables("manifest/"), ElementsAre("manifest/1"))
      << "it has not changed";
  ASSERT_OK(store_.Put("members/99", "block/00000000", "x"));
  Restart();
  EXPECT_THAT(*store_.Tables("members/"), ElementsAre("members/3"));
}

// What is accepted can be stored and loaded.
TEST_F(RestartTest, TextsOfAJobAreAnyBytes) {
  const std::string bytes("\0\xff\xc3(", 4);
  KeptJob job;
  job.name = "job";
  job.generation = Generation(1);
  job.world_size = 2;
  job.finished = true;
  job.last_event = job.reason = bytes;
  job.previous.lost.emplace_back().reason = bytes;
  StateBatch batch;
  PutJob(job, &batch);
  ASSERT_OK(store_.Apply(batch));
  ASSERT_OK_AND_ASSIGN(const LoadedJobs loaded,
                       LoadJobs(store_, Generation(2)));
  ASSERT_THAT(loaded.jobs, SizeIs(1));
  EXPECT_EQ(loaded.jobs[0].job.last_event, bytes);
  EXPECT_EQ(loaded.jobs[0].job.reason, bytes);
  EXPECT_EQ(loaded.jobs[0].job.previous.lost.at(0).reason, bytes);
}

TEST_F(RestartTest, AForgottenJobIsForgotten) {
  options_.max_jobs = 1;
  Restart();
  const auto team = Run(1, "a");
  membership_->ReportExit(team[0]->exit(9));
  Run(1, "b");
  Restart();
  EXPECT_FALSE(membership_->Describe("a").ok());
  EXPECT_TRUE(membership_->Describe("b").ok());
  EXPECT_THAT(*store_.Tables("members/"), SizeIs(1));
}

TEST_F(RestartTest, TheHighestAttemptIsKept) {
  Worker* worker = MakeElastic(1, 2, 0);
  worker->request.attempt = 3;
  Join(worker);
  Pass(absl::Seconds(5));
  ASSERT_OK(worker->answers.at(0));
  Restart();
  Worker* early = MakeElastic(1, 2, 0);
  early->request.attempt = 2;
  Join(early);
  EXPECT_THAT(early->answers.at(0),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("attempt 3 has begun")));
  EXPECT_EQ(Description().state, JobState::kRunning);
}

// One record of a job is spoiled while no coordinator runs. Another job is
// there and goes on.
class UnreadableStateTest : public RestartTest {
 protected:
  void SetUp() override {
    options_.max_jobs = 3;
    RestartTest::SetUp();
    team_ = Run(2);
    other_ = Run(1, "other");
  }
  void Spoil(const std::string& table, const std::string& key,
             const std::string& value) {
    ASSERT_OK(store_.Put(table, key, value));
    Restart();
    ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(store_));
    EXPECT_THAT(quarantined,
                Contains(AllOf(Field(&QuarantinedRecord::table, table),
                               Field(&QuarantinedRecord::key, key),
                               Field(&QuarantinedRecord::job, "job"))));
    ASSERT_OK_AND_ASSIGN(const auto values, store_.List("quarantine"));
    EXPECT_THAT(values, Contains(Field(&StateStore::Record::second, value)));
  }
  void ExpectOtherGoesOn() {
    EXPECT_EQ(Description("other").state, JobState::kRunning);
    Attach(other_[0]);
    Fence fence = other_[0]->fence();
    fence.term = membership_->term();
    EXPECT_OK(membership_->Admit(fence));
  }
  // A worker of the lost generation is fenced off, and the next has a number
  // that was never used.
  void ExpectBeginsAgain(const std::string& why) {
    EXPECT_EQ(Description().state, JobState::kEnded);
    EXPECT_THAT(Description().last_event, HasSubstr(why));
    const Fence old = team_[0]->fence();
    const absl::Status fenced =
        membership_->Attach(old, [](const AttachEvent&) {}).status();
    EXPECT_EQ(DetailOf(fenced).stale_fence().field(), "generation");
    Rejoin(team_[0]);
    Rejoin(team_[1]);
    ASSERT_OK(team_[0]->answers.back());
    EXPECT_EQ(team_[0]->joined().generation, Generation(3));
    Attach(team_[0]);
  }

  std::vector<Worker*> team_;
  std::vector<Worker*> other_;
};

TEST_F(UnreadableStateTest, TheRecordOfAJobCostsItsGeneration) {
  Spoil("jobs", "job", "\xff\xff\xff");
  EXPECT_THAT(*store_.Tables("members/"), ElementsAre("members/2"));
  // It is known as long as its record is in quarantine.
  Restart();
  ExpectOtherGoesOn();
  ExpectBeginsAgain("in quarantine");
}

// Its plan is lost as well, so that nothing shows which versions it has had.
TEST_F(UnreadableStateTest, AJobWithoutRecordAndPlanGetsNoVersionAgain) {
  for (const std::string& table : PlanStore::TableNames()) {
    ASSERT_OK(store_.Delete(table, "job"));
  }
  Spoil("jobs", "job", "?");
  ExpectBeginsAgain("in quarantine");
  EXPECT_GT(team_[0]->joined().plan.version, 1);
}

// Its record, whose key is damaged, seems to be that of another job.
TEST_F(UnreadableStateTest, AJobWhoseNameIsLostKeepsItsPlan) {
  schedule::Plan proposal = team_[0]->joined().plan;
  proposal.hook = "bf16";
  ASSERT_OK(plans_->Propose("job", 1, proposal));
  ASSERT_OK_AND_ASSIGN(const std::string record, store_.Get("jobs", "job"));
  ASSERT_OK(store_.Apply(
      StateBatch().Delete("jobs", "job").Put("jobs", "jib", record)));
  ASSERT_OK(QuarantineRecords({{"jobs", "jib", record, "jib", kWrongChecksum}},
                              &store_));
  Restart();
  ExpectOtherGoesOn();
  for (Worker* worker : team_) Join(worker);
  ASSERT_OK(team_[0]->answers.back());
  EXPECT_EQ(team_[0]->joined().generation, Generation(3));
  EXPECT_EQ(team_[0]->joined().plan.version, 2);
  EXPECT_EQ(team_[0]->joined().plan.hook, "bf16");
}

// One of which no more is known than its record in quarantine.
TEST_F(UnreadableStateTest, AForgottenJobTakesItsPlanAlong) {
  Spoil("jobs", "job", "?");
  EXPECT_OK(store_.Get("plan.current", "job"));
  Run(1, "third");
  Run(1, "fourth");
  EXPECT_THAT(membership_->Describe("job"),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  for (const std::string& table : PlanStore::TableNames()) {
    EXPECT_FALSE(store_.Get(table, "job").ok()) << table;
  }
  EXPECT_OK(store_.Get("plan.current", "other"));
}

TEST_F(UnreadableStateTest, MembersCostTheGeneration) {
  ASSERT_OK_AND_ASSIGN(const std::string block,
                       store_.Get("members/1", "block/00000000"));
  Spoil("members/1", "block/00000000", block.substr(0, block.size() - 1));
  Restart();
  ExpectOtherGoesOn();
  ExpectBeginsAgain("list of members");
}

TEST_F(UnreadableStateTest, AMemberTooManyCostsTheGeneration) {
  Spoil("members/1", "gone/00000009", "");
  ExpectOtherGoesOn();
  ExpectBeginsAgain("list of members");
}

TEST_F(UnreadableStateTest, AMissingMemberCostsTheGeneration) {
  ASSERT_OK(store_.Delete("members/1", "block/00000000"));
  Restart();
  ExpectOtherGoesOn();
  ExpectBeginsAgain("0 of 2");
}

TEST_F(UnreadableStateTest, TheManifestCostsTheGeneration) {
  Spoil("manifest/1", "00000000", "\xff\xff\xff");
  ExpectOtherGoesOn();
  ExpectBeginsAgain("manifest");
  Restart();
  EXPECT_EQ(Description().state, JobState::kRunning);
}

// What is left of a manifest without one of its pieces may be read as well, as
// another one.
class ManifestPiecesTest : public UnreadableStateTest {
 protected:
  void SetUp() override {
    UnreadableStateTest::SetUp();
    // A generation whose manifest is in the table of the one before.
    for (Worker* worker : team_) ASSERT_OK(Leave(worker, true));
    for (Worker* worker : team_) Rejoin(worker);
    ASSERT_EQ(team_[0]->joined().generation, Generation(3));
    // Each piece is a whole field.
    ASSERT_OK_AND_ASSIGN(const std::string bytes,
                         store_.Get("manifest/1", "00000000"));
    StateBatch batch;
    batch.Put("manifest/1", "00000000", bytes);
    for (const char* key : {"00000001", "00000002"}) {
      coxswain::v1::Manifest piece;
      auto* const parameter = piece.add_parameters();
      parameter->set_name(key);
      parameter->add_shape(1);
      parameter->set_dtype("float32");
      batch.Put("manifest/1", key, piece.SerializeAsString());
    }
    ASSERT_OK(store_.Apply(batch));
    Restart();
    ASSERT_EQ(Description().state, JobState::kRunning);
  }
  void ExpectLost() {
    ExpectOtherGoesOn();
    EXPECT_EQ(Description().state, JobState::kEnded);
    EXPECT_THAT(Description().last_event, HasSubstr("manifest"));
    ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(store_));
    EXPECT_THAT(quarantined,
                Contains(Field(&QuarantinedRecord::table, "manifest/1")));
    for (Worker* worker : team_) Rejoin(worker);
    ASSERT_OK(team_[0]->answers.back());
    EXPECT_EQ(team_[0]->joined().generation, Generation(4));
    Restart();
    EXPECT_EQ(Description().state, JobState::kRunning);
  }
};

TEST_F(ManifestPiecesTest, AMissingOneCostsTheGeneration) {
  ASSERT_OK(store_.Delete("manifest/1", "00000001"));
  Restart();
  ExpectLost();
}

TEST_F(ManifestPiecesTest, TheLastOneInQuarantineCostsTheGeneration) {
  ASSERT_OK(QuarantineRecords(
      {{"manifest/1", "00000002", "?", "", kWrongChecksum}}, &store_));
  Restart();
  ExpectLost();
}

TEST_F(UnreadableStateTest, ThePlanCostsTheGenerationAndNoVersionIsReused) {
  const int64_t version = team_[0]->joined().plan.version;
  Spoil("plan.current", "job", "\xff\xff\xff");
  ExpectOtherGoesOn();
  ExpectBeginsAgain("plan");
  EXPECT_GT(team_[0]->joined().plan.version, version);
  EXPECT_EQ(team_[0]->joined().previous, Generation(1));
  Restart();
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(UnreadableStateTest, AMissingPlanCostsTheGeneration) {
  for (const std::string& table : PlanStore::TableNames()) {
    ASSERT_OK(store_.Delete(table, "job"));
  }
  Restart();
  ExpectOtherGoesOn();
  ExpectBeginsAgain("plan");
  EXPECT_GT(team_[0]->joined().plan.version, 1);
}

// It may have been the record of another job, or of another generation.
TEST_F(UnreadableStateTest, AGenerationThatWasNeverGivenOutIsNotBelieved) {
  state::v1::Job job;
  ASSERT_TRUE(job.ParseFromString(*store_.Get("jobs", "job")));
  job.set_generation(3);
  Spoil("jobs", "job", job.SerializeAsString());
  ExpectOtherGoesOn();
  ExpectBeginsAgain("in quarantine");
}

TEST_F(UnreadableStateTest, OfTwoJobsWithOneGenerationNeitherIsBelieved) {
  ASSERT_OK_AND_ASSIGN(const std::string record, store_.Get("jobs", "other"));
  Spoil("jobs", "job", record);
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_EQ(Description("other").state, JobState::kEnded);
}

TEST_F(UnreadableStateTest, AFormatThatTheSchemaDoesNotHaveIsNotGuessedAt) {
  ASSERT_OK_AND_ASSIGN(const std::string record, store_.Get("jobs", "job"));
  Spoil("jobs", "job", record + "\x08\x02");  // format = 2
  ExpectOtherGoesOn();
  ExpectBeginsAgain("in quarantine");
}

// What ended before the next generation began stays known.
TEST_F(UnreadableStateTest, TheAttemptOutlivesItsMembers) {
  Worker* const later = Make(2, 0);
  later->request.attempt = 4;
  Join(later);
  Worker* const second = Make(2, 1);
  second->request.attempt = 4;
  Join(second);
  ASSERT_OK(later->answers.at(0));
  Spoil("members/3", "block/00000000", "\xff");
  Worker* const stale = Make(2, 0);
  stale->request.attempt = 3;
  Join(stale);
  EXPECT_THAT(stale->answers.at(0),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("attempt 4 has begun")));
  Join(later);
  Join(second);
  ASSERT_OK(later->answers.back());
  EXPECT_EQ(later->joined().generation, Generation(4));
}

TEST_F(UnreadableStateTest, JobsInQuarantineDriveOutNoOthers) {
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK(store_.Put("jobs", absl::StrCat("lost-", i), "?"));
  }
  Restart();
  EXPECT_THAT(membership_->Summaries(), SizeIs(3));
  ExpectOtherGoesOn();
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(UnreadableStateTest, WithoutTheNumbersNothingIsChanged) {
  ASSERT_OK(store_.Put("cluster", "next_generation", "2"));
  ASSERT_OK(store_.Put("jobs", "job", "?"));
  membership_.reset();
  EXPECT_THAT(
      Membership::Open(options_, {&clock_, &random_, &writer_, plans_.get()}),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'next_generation'")));
  EXPECT_EQ(store_.Get("jobs", "job").value_or(""), "?");
  EXPECT_THAT(*ListQuarantined(store_), IsEmpty());
}

// A coordinator from before there was a schema wrote plain numbers, and no mark
// of plan versions.
TEST_F(UnreadableStateTest, AnOlderStateIsTakenOver) {
  const std::string id = membership_->cluster_id();
  ASSERT_OK(store_.Apply(StateBatch()
                             .DeleteTable("cluster")
                             .Put("cluster", "id", id)
                             .Put("cluster", "next_term", "7")
                             .Put("cluster", "next_generation", "3")));
  Restart();
  EXPECT_EQ(membership_->cluster_id(), id);
  EXPECT_EQ(membership_->term(), Term(7));
  EXPECT_EQ(Description().state, JobState::kRunning);
  ExpectOtherGoesOn();
  ASSERT_OK_AND_ASSIGN(const ClusterRecords cluster,
                       ReadClusterRecords(store_));
  EXPECT_EQ(cluster.next_term, 8);
  EXPECT_EQ(cluster.next_generation, 3);
  EXPECT_EQ(cluster.next_plan_version, 2);
  Spoil("plan.current", "job", "?");
  ExpectBeginsAgain("plan");
  EXPECT_EQ(team_[0]->joined().plan.version, 2);
}

class MixedRandom : public RandomSource {
 public:
  explicit MixedRandom(uint64_t seed) : state_(Mix64(seed)) {}
  uint64_t Next() override { return Mix64(state_++); }

 private:
  uint64_t state_;
};

// The same history of a job twice: once its clients lose their connections from
// time to time, and once the coordinator is restarted instead. Members must see
// no difference.
class HistoryTest : public RestartTest {
 protected:
  // Whether this worker is a process that is there.
  struct Player {
    Worker* worker = nullptr;
    bool alive = true;
    bool waits = false;
    bool member = false;  // of the generation it last joined, and not left
  };

  void SetUp() override {
    options_.lease = options_.reattach_grace = absl::Hours(5);
    options_.rejoin_grace = options_.survivor_timeout = absl::Hours(1);
    RestartTest::SetUp();
  }

  void Play(uint64_t seed, int steps, int interval, bool restarts) {
    MixedRandom random(seed);
    for (int step = 0; step < steps; ++step) {
      Act(&random);
      Settle();
      if (step % interval == interval - 1) Interrupt(restarts);
      history_.push_back(Snapshot());
    }
  }

  void Act(MixedRandom* random) {
    const uint64_t choice = random->Next() % 12;
    Player* const player = Pick(random);
    if (choice < 3 || player == nullptr) return Start(random->Next() % 6);
    if (choice == 3) return Exit(player);
    if (choice < 8) {
      if (player->member) Depart(player, choice, random->Next() % 4 == 0);
      return;
    }
    if (choice == 8) return Start(static_cast<int>(players_.size()) % 6);
    Pass(absl::Seconds(random->Next() % 4));
  }
  Player* Pick(MixedRandom* random) {
    const uint64_t number = random->Next();
    std::vector<Player*> alive;
    for (Player& player : players_) {
      if (player.alive) alive.push_back(&player);
    }
    return alive.empty() ? nullptr : alive[number % alive.size()];
  }
  void Start(int slot) {
    Player& player = players_.emplace_back();
    // Whom the launchers of a finished job start again has nothing to do.
    if (Description().state == JobState::kEnded && players_.size() % 2 == 0) {
      ++launcher_;
    }
    player.worker = MakeElastic(2, 4, slot);
    Ask(&player);
  }
  void Ask(Player* player) {
    player->waits = true;
    Join(player->worker);
  }
  void Exit(Player* player) {
    player->alive = player->waits = player->member = false;
    membership_->ReportExit(player->worker->exit(9));
  }
  void Depart(Player* player, uint64_t how, bool again) {
    const bool rejoin = how < 7;
    player->member = false;
    ASSERT_OK(Leave(player, how == 4, rejoin));
    if (!rejoin) {
      player->alive = false;
    } else if (!again) {
      AskAgain(player);
    }
  }
  absl::Status Leave(Player* player, bool failed, bool rejoin) {
    Fence fence = player->worker->fence();
    fence.term = membership_->term();
    return membership_->Leave(fence, "so", failed, rejoin);
  }

  // Lets clients act on the events that they received.
  void Settle() {
    for (int round = 0; round < 3; ++round) {
      for (Player& player : players_) TakeAnswer(&player);
      for (Player& player : players_) TakeEnd(&player);
    }
  }
  void TakeAnswer(Player* player) {
    Worker& worker = *player->worker;
    if (!player->waits || worker.answers.size() == received_[&worker]) return;
    received_[&worker] = worker.answers.size();
    player->waits = false;
    if (!worker.answers.back().ok()) {
      player->alive = false;
      return;
    }
    Enter(player);
  }
  void Enter(Player* player) {
    Worker* const worker = player->worker;
    worker->events.clear();
    const auto attachment = membership_->Attach(
        worker->fence(), [worker](const AttachEvent& event) {
          worker->events.emplace_back(event);
        });
    player->member = attachment.ok();
    if (attachment.ok()) {
      worker->attachment = *attachment;
    } else {
      AskAgain(player);
    }
  }
  void AskAgain(Player* player) {
    player->worker->request.after_generation =
        player->worker->joined().generation;
    Ask(player);
  }
  void TakeEnd(Player* player) {
    Worker& worker = *player->worker;
    if (!player->member || worker.events.empty() ||
        worker.events.back().kind != FlatEvent::Kind::kClosed) {
      return;
    }
    player->member = false;
    AskAgain(player);
  }

  void Interrupt(bool restart) {
    for (Player& player : players_) {
      if (restart) continue;
      if (player.waits) membership_->Withdraw(player.worker->join_id);
      if (player.member) membership_->Detach(player.worker->attachment);
    }
    if (restart) Restart();
    for (Player& player : players_) {
      if (player.member) Enter(&player);
    }
    for (Player& player : players_) {
      if (player.waits) Join(player.worker);
    }
    Settle();
  }

  static std::string EndedAt(Generation generation) {
    return absl::StrCat("ended ", generation.value());
  }
  std::string Snapshot() {
    const auto jobs = membership_->Describe("job");
    if (!jobs.ok()) return EndedAt(Generation(0));
    const JobDescription& job = jobs->front();
    // Less is kept of a job that is finished, and nothing of one that never
    // began.
    if (job.state == JobState::kEnded) return EndedAt(job.generation);
    std::string text = absl::StrCat(
        ToString(job.state), " ", job.generation.value(), " of ",
        job.min_world_size, "-", job.world_size, " plan ", job.plan.version);
    for (const MemberDescription& member : job.members) {
      absl::StrAppend(&text, "\n  ", member.member.ToString(), " ",
                      ToString(member.state));
    }
    for (const MemberDescription& spare : job.spares) {
      absl::StrAppend(&text, "\n  waits: ", spare.member.ToString());
    }
    for (const Player& player : players_) {
      if (!player.member) continue;
      const JoinResult& joined = player.worker->joined();
      absl::StrAppend(&text, "\n  ", player.worker->request.identity.ToString(),
                      " is ", joined.rank, " of ", joined.members->size(),
                      " after ", joined.previous.value(), " of ",
                      joined.previous_world_size, " by ", joined.reason);
      if (joined.lost == nullptr) continue;
      for (const LostMember& lost : *joined.lost) {
        absl::StrAppend(&text, "; without ", lost.member.ToString(), ": ",
                        lost.left, " ", lost.reason);
      }
    }
    return text;
  }

  std::deque<Player> players_;
  std::map<const Worker*, size_t> received_;
  std::vector<std::string> history_;
};

class HistoriesTest : public testing::TestWithParam<int> {
 protected:
  class World : public HistoryTest {
   public:
    World(uint64_t seed, int interval, bool restarts) {
      SetUp();
      Play(seed, 120, interval, restarts);
    }
    ~World() override { TearDown(); }
    void TestBody() override {}
    const std::vector<std::string>& history() const { return history_; }
  };
};

TEST_P(HistoriesTest, ARestartIsALostConnectionAndNothingElse) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const World with(seed, GetParam(), true);
    const World without(seed, GetParam(), false);
    ASSERT_EQ(with.history().size(), without.history().size());
    for (size_t step = 0; step < with.history().size(); ++step) {
      ASSERT_EQ(with.history()[step], without.history()[step])
          << "seed " << seed << ", step " << step << ", before:\n"
          << (step > 0 ? with.history()[step - 1] : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, HistoriesTest, testing::Values(1, 2, 3, 7, 20));

}  // namespace
}  // namespace coxswain::server
