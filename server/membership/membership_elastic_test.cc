// Jobs whose members change: what the membership does with survivors,
// spares, and workers that make way.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "server/membership/membership_fixture.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using ElasticTest = MembershipTest;

std::vector<std::string> Names(const JoinResult& result) {
  std::vector<std::string> names;
  for (const Member& member : *result.members) {
    names.push_back(member.identity.ToString());
  }
  return names;
}

TEST_F(ElasticTest, SurvivorsGoOnAtOnceWithoutTheLost) {
  const auto team = RunElastic(2, 4, 3);
  EXPECT_THAT(*team[0]->joined().members, SizeIs(3));
  EXPECT_THAT(team[0]->joined().reason, HasSubstr("no one else for 5s"));
  Progress progress = MakeProgress(7, 1);
  progress.error_norm = 1.5;
  progress.error_step = 6;
  ASSERT_OK(membership_->Heartbeat(team[0]->attachment, progress));
  membership_->ReportExit(team[0]->exit(9));
  Rejoin(team[2]);
  EXPECT_THAT(team[2]->answers, SizeIs(1));
  Rejoin(team[1]);
  ASSERT_THAT(team[2]->answers, SizeIs(2));
  ASSERT_OK(team[2]->answers[1]);
  const JoinResult& joined = team[1]->joined();
  EXPECT_EQ(joined.generation, Generation(2));
  EXPECT_EQ(joined.rank, 1) << "it keeps its rank";
  EXPECT_EQ(team[2]->joined().rank, 0);
  EXPECT_EQ(joined.previous, Generation(1));
  EXPECT_EQ(joined.previous_world_size, 3);
  EXPECT_EQ(joined.reason, "all 2 survivors are back, 2 of at most 4 workers");
  ASSERT_THAT(*joined.lost, SizeIs(1));
  const LostMember& lost = joined.lost->front();
  EXPECT_EQ(lost.member.rank, 0);
  EXPECT_FALSE(lost.left);
  EXPECT_THAT(lost.reason, HasSubstr("killed by signal 9"));
  EXPECT_EQ(lost.error_norm, 1.5);
  EXPECT_EQ(lost.error_step, 6);
}

TEST_F(ElasticTest, ASpareTakesThePlaceOfTheLost) {
  const auto team = RunElastic(2, 3, 3);
  Worker* spare = MakeElastic(2, 3, 0, "host-z");
  Join(spare);
  Pass(absl::Seconds(9));
  EXPECT_THAT(spare->answers, IsEmpty());
  EXPECT_THAT(Description().spares, SizeIs(1));
  EXPECT_THAT(observer_.regroups, IsEmpty()) << "there is no room";
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  Rejoin(team[2]);
  ASSERT_THAT(spare->answers, SizeIs(1));
  ASSERT_OK(spare->answers[0]);
  EXPECT_THAT(Names(spare->joined()),
              ElementsAre("host-a/0", "host-z/0", "host-a/2"));
  EXPECT_THAT(Description().spares, IsEmpty());
}

TEST_F(ElasticTest, SparesWaitAsLongAsTheJobRuns) {
  const auto team = RunElastic(2, 3, 3);
  Worker* spare = MakeElastic(2, 3, 0, "host-z");
  Join(spare);
  for (int minute = 0; minute < 60; ++minute) {
    for (int beat = 0; beat < 12; ++beat) {
      Pass(absl::Seconds(5));
      Beat(team);
    }
  }
  EXPECT_THAT(spare->answers, IsEmpty());
  membership_->Withdraw(spare->join_id);
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(Description().spares, IsEmpty());
}

TEST_F(ElasticTest, SparesDoNotTakeThePlaceOfSurvivors) {
  const auto team = RunElastic(2, 3, 3);
  std::vector<Worker*> spares;
  for (int slot = 0; slot < 4; ++slot) {
    spares.push_back(MakeElastic(2, 3, slot, "host-z"));
    Join(spares.back());
  }
  membership_->ReportExit(team[1]->exit(9));
  Pass(absl::Seconds(6));
  EXPECT_EQ(Description().state, JobState::kForming);
  Rejoin(team[2]);
  EXPECT_EQ(Description().state, JobState::kForming);
  Rejoin(team[0]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  // The first of the spares.
  EXPECT_THAT(Names(team[0]->joined()),
              ElementsAre("host-a/0", "host-z/0", "host-a/2"));
  EXPECT_THAT(Description().spares, SizeIs(3));
  EXPECT_THAT(spares[1]->answers, IsEmpty());
}

TEST_F(ElasticTest, SurvivorsOfWhatEndedBeforeItsBeginAreWaitedFor) {
  const auto team = RunElastic(1, 2, 2);
  std::vector<Worker*> spares;
  for (int slot = 0; slot < 3; ++slot) {
    spares.push_back(MakeElastic(1, 2, slot, "host-z"));
    Join(spares.back());
  }
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  // The newcomer dies, and team[0] has not attached.
  ASSERT_OK(spares[0]->answers.at(0));
  membership_->ReportExit(spares[0]->exit(9));
  Pass(absl::Seconds(6));
  EXPECT_THAT(spares[1]->answers, IsEmpty()) << "there are enough without it";
  Rejoin(team[0]);
  ASSERT_THAT(team[0]->answers, SizeIs(3));
  ASSERT_OK(team[0]->answers[2]);
  EXPECT_THAT(Names(team[0]->joined()), ElementsAre("host-a/0", "host-z/1"));
}

TEST_F(ElasticTest, NewcomersAloneWaitForAMemberWithTheState) {
  const auto team = RunElastic(1, 2, 2);
  membership_->ReportExit(team[1]->exit(9));
  Worker* const restarted = MakeElastic(1, 2, 1);
  Worker* const spare = MakeElastic(1, 2, 0, "host-z");
  for (Worker* worker : {restarted, spare}) {
    worker->request.timeout = absl::Hours(1);
    Join(worker);
  }
  Pass(absl::Minutes(9));
  EXPECT_THAT(restarted->answers, IsEmpty());
  EXPECT_THAT(Description().last_event,
              AllOf(HasSubstr("was lost"),
                    HasSubstr("waiting for rank 0 (host-a/0) of the last "
                              "generation, which has the state")));
  // However late.
  Rejoin(team[0]);
  ASSERT_OK(team[0]->answers.at(1));
  EXPECT_EQ(team[0]->joined().rank, 0);
}

TEST_F(ElasticTest, NewcomersAloneDoNotWaitForEver) {
  const auto team = RunElastic(1, 2, 2);
  membership_->ReportExit(team[1]->exit(9));
  Worker* const restarted = MakeElastic(1, 2, 1);
  // Less than that patience, as is the default.
  restarted->request.timeout = absl::Minutes(5);
  Join(restarted);
  Pass(options_.survivor_timeout - absl::Seconds(1));
  EXPECT_THAT(restarted->answers, IsEmpty());
  Pass(absl::Seconds(1));
  ASSERT_OK(restarted->answers.at(0));
}

TEST_F(ElasticTest, NewcomersWaitUntilAMemberWithTheStateIsBack) {
  const auto team = RunElastic(2, 3, 3);
  membership_->ReportExit(team[2]->exit(9));
  Worker* const restarted = MakeElastic(2, 3, 2);
  restarted->request.timeout = absl::Minutes(5);
  Join(restarted);
  Pass(absl::Minutes(9));
  EXPECT_THAT(restarted->answers, IsEmpty()) << "alone it is not enough";
  for (Worker* survivor : {team[0], team[1]}) Rejoin(survivor);
  ASSERT_OK(restarted->answers.at(0));
  EXPECT_THAT(*restarted->joined().members, SizeIs(3));
  // If they never come, that is its end.
  membership_->ReportExit(team[1]->exit(9));
  Worker* const late = MakeElastic(2, 3, 1);
  late->request.timeout = absl::Minutes(5);
  membership_->ReportExit(restarted->exit(9));
  Join(late);
  Pass(options_.survivor_timeout - absl::Seconds(1));
  EXPECT_THAT(late->answers, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(late->answers.at(0),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("1 of 2 workers have joined"),
                             HasSubstr("not back: host-a/0"))));
}

TEST_F(ElasticTest, ASurvivorThatLeftOrDiedOrWasReplacedIsNotWaitedFor) {
  const auto team = RunElastic(1, 4, 4);
  membership_->ReportExit(team[3]->exit(9));
  Worker* const newcomer = MakeElastic(1, 4, 3);
  Join(newcomer);
  membership_->ReportExit(team[0]->exit(6));
  ASSERT_OK(membership_->Leave(team[1]->fence(), "it drains", false));
  Pass(absl::Seconds(20));
  EXPECT_THAT(newcomer->answers, IsEmpty()) << "rank 2 may come back yet";
  // A new process where the last of them was.
  Join(MakeElastic(1, 4, 2));
  Pass(options_.last_call);
  ASSERT_THAT(newcomer->answers, SizeIs(1));
  ASSERT_OK(newcomer->answers[0]);
  EXPECT_THAT(Names(newcomer->joined()), ElementsAre("host-a/2", "host-a/3"));
}

TEST_F(ElasticTest, ASurvivorThatLeavesForGoodWaitsNoLonger) {
  const auto team = RunElastic(1, 3, 3);
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  ASSERT_OK(membership_->Leave(team[0]->fence(), "it drains", false));
  EXPECT_THAT(team[0]->answers.at(1),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("for good")));
  Rejoin(team[2]);
  ASSERT_OK(team[2]->answers.at(1));
  EXPECT_THAT(Names(team[2]->joined()), ElementsAre("host-a/2"));
}

TEST_F(ElasticTest, AMemberThatMadeWayAndLeavesForGoodWaitsNoLonger) {
  const auto team = RunElastic(1, 3, 3);
  ASSERT_OK(Leave(team[0], /*rejoin=*/true));
  Rejoin(team[0]);
  ASSERT_OK(membership_->Leave(team[0]->fence(), "it drains", false));
  EXPECT_THAT(team[0]->answers.at(1),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("for good")));
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(ElasticTest, AReplacementHasNotTheStateOfTheSurvivor) {
  const auto team = RunElastic(1, 3, 3);
  membership_->ReportExit(team[2]->exit(9));
  Join(MakeElastic(1, 3, 1));
  Pass(absl::Minutes(1) - absl::Seconds(31));
  EXPECT_EQ(Description().state, JobState::kForming) << "rank 0 has the state";
  Rejoin(team[0]);
  ASSERT_OK(team[0]->answers.at(1));
}

TEST_F(ElasticTest, AMissingSurvivorIsNotWaitedForForever) {
  const auto team = RunElastic(2, 4, 4);
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  Pass(absl::Seconds(1));
  Rejoin(team[2]);
  Pass(absl::Milliseconds(4900));
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  Pass(absl::Milliseconds(100));
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  ASSERT_OK(team[0]->answers[1]);
  EXPECT_THAT(Names(team[0]->joined()), ElementsAre("host-a/0", "host-a/2"));
  ASSERT_THAT(*team[0]->joined().lost, SizeIs(2));
  EXPECT_EQ((*team[0]->joined().lost)[1].reason,
            "it did not join again in time");
  // Too late, it is a spare.
  Rejoin(team[3]);
  EXPECT_THAT(team[3]->answers, SizeIs(1));
  EXPECT_THAT(Description().spares, SizeIs(1));
}

TEST_F(ElasticTest, ASurvivorThatDiesIsNotWaitedFor) {
  const auto team = RunElastic(1, 4, 4);
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  Rejoin(team[2]);
  membership_->ReportExit(team[3]->exit(6));
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(Names(team[0]->joined()), ElementsAre("host-a/0", "host-a/2"));
  EXPECT_THAT((*team[0]->joined().lost)[1].reason,
              HasSubstr("killed by signal 6"));
  // Also one that had come back already.
  membership_->ReportExit(team[2]->exit(9));
  EXPECT_THAT(team[0]->answers, SizeIs(2));
  Rejoin(team[0]);
  ASSERT_THAT(team[0]->answers, SizeIs(3));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(1));
}

TEST_F(ElasticTest, AWaitingSurvivorThatDiesDoesNotGiveUpTheRound) {
  const auto team = RunElastic(1, 3, 3);
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  membership_->ReportExit(team[0]->exit(9));
  EXPECT_THAT(team[0]->answers.at(1),
              StatusIs(absl::StatusCode::kAborted, testing::_));
  Rejoin(team[2]);
  ASSERT_THAT(team[2]->answers, SizeIs(2));
  EXPECT_THAT(Names(team[2]->joined()), ElementsAre("host-a/2"));
}

TEST_F(ElasticTest, AWaitingNewcomerThatDiesDoesNotGiveUpTheFirstRound) {
  Worker* a = MakeElastic(1, 3, 0);
  Worker* b = MakeElastic(1, 3, 1);
  Join(a);
  Join(b);
  membership_->ReportExit(b->exit(9));
  EXPECT_THAT(a->answers, IsEmpty());
  Pass(absl::Seconds(5));
  ASSERT_THAT(a->answers, SizeIs(1));
  EXPECT_OK(a->answers[0]);
}

TEST_F(ElasticTest, TheGenerationEndsForALargerOne) {
  const auto team = RunElastic(2, 4, 2);
  Worker* spare = MakeElastic(2, 4, 0, "host-b");
  Join(spare);
  Pass(absl::Seconds(4));
  EXPECT_THAT(observer_.regroups, IsEmpty()) << "the generation is young";
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups,
              ElementsAre("job 1: a worker waits to join: host-b/0"));
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups, SizeIs(2)) << "until it happens";
  Beat(team);

  ASSERT_OK(Leave(team[1], /*rejoin=*/true));
  Rejoin(team[1]);
  EXPECT_EQ(Description().state, JobState::kRunning);
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups, SizeIs(2)) << "it is on its way";
  ASSERT_OK(Leave(team[0], /*rejoin=*/true));
  EXPECT_THAT(Description().last_event,
              HasSubstr("left cleanly, 2 of them for the next"));
  EXPECT_EQ(Description().state, JobState::kForming);
  Rejoin(team[0]);
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(Names(spare->joined()),
              ElementsAre("host-a/0", "host-a/1", "host-b/0"));
  EXPECT_THAT(*spare->joined().lost, IsEmpty());
  EXPECT_EQ(spare->joined().previous_world_size, 2);
}

// Has the members report of the spare.
void ReportSpare(Membership* membership, const Worker* member,
                 const Worker* spare, bool settled,
                 const std::string& damage = "") {
  Progress progress;
  progress.newcomers.push_back({spare->request.incarnation, settled, damage});
  ASSERT_OK(membership->Heartbeat(member->attachment, progress));
}

TEST_F(ElasticTest, TheRegroupWaitsUntilASpareHasTheState) {
  const auto team = RunElastic(2, 4, 2);
  Worker* spare = MakeElastic(2, 4, 0, "host-b");
  spare->request.catch_up_address = "host-b:7";
  spare->request.catch_up_secret = 42;
  Join(spare);
  EXPECT_THAT(observer_.catch_ups, IsEmpty()) << "others may come with it";
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.catch_ups, ElementsAre("job 1: host-b:7 42"));
  ReportSpare(membership_.get(), team[1], spare, /*settled=*/false);
  Pass(absl::Seconds(5));
  Beat(team);
  Pass(absl::Seconds(2));
  EXPECT_THAT(observer_.catch_ups, SizeIs(1)) << "once";
  EXPECT_THAT(observer_.regroups, IsEmpty());
  ReportSpare(membership_.get(), team[1], spare, /*settled=*/true);
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups,
              ElementsAre("job 1: a worker waits to join: host-b/0"));
}

// A piece that was damaged comes again after a later step.
TEST_F(ElasticTest, TheRegroupWaitsForASpareThatLacksSomethingAgain) {
  const auto team = RunElastic(2, 4, 2);
  Worker* spare = MakeElastic(2, 4, 0, "host-b");
  spare->request.catch_up_address = "host-b:7";
  Join(spare);
  // Both before the coordinator looks.
  ReportSpare(membership_.get(), team[0], spare, /*settled=*/true);
  ReportSpare(membership_.get(), team[0], spare, /*settled=*/false, "damaged");
  Pass(absl::Seconds(5));
  ASSERT_THAT(observer_.catch_ups, SizeIs(1));
  Beat(team);
  Pass(absl::Seconds(2));
  EXPECT_THAT(observer_.regroups, IsEmpty());
  // Another one sends it nothing more, so that it cannot come to an end.
  ReportSpare(membership_.get(), team[1], spare, /*settled=*/true);
  ReportSpare(membership_.get(), team[0], spare, /*settled=*/false, "damaged");
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups, SizeIs(1));
}

TEST_F(ElasticTest, TheRegroupWaitsForNoSpareThatTakesTooLong) {
  const auto team = RunElastic(2, 4, 2);
  Worker* spare = MakeElastic(2, 4, 0, "host-b");
  spare->request.catch_up_address = "host-b:7";
  Join(spare);
  // The generation is too young for a regroup, and the time is running.
  Pass(absl::Seconds(1));
  ASSERT_THAT(observer_.catch_ups, SizeIs(1));
  for (int i = 0; i < 29; ++i) {
    Beat(team);
    Pass(absl::Seconds(1));
  }
  EXPECT_THAT(observer_.regroups, IsEmpty());
  Beat(team);
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups, SizeIs(1));
}

TEST_F(ElasticTest, OneThatHasCaughtUpWaitsUntilTheGenerationIsOldEnough) {
  const auto team = RunElastic(2, 4, 2);
  Worker* spare = MakeElastic(2, 4, 0, "host-b");
  spare->request.catch_up_address = "host-b:7";
  Join(spare);
  Pass(absl::Seconds(1));
  ASSERT_THAT(observer_.catch_ups, SizeIs(1));
  ReportSpare(membership_.get(), team[0], spare, /*settled=*/true);
  Pass(absl::Seconds(3));
  EXPECT_THAT(observer_.regroups, IsEmpty()) << "it is 4 s old";
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups, SizeIs(1));
}

TEST_F(ElasticTest, ASpareThatComesWhileAnotherCatchesUpIsWaitedForToo) {
  const auto team = RunElastic(2, 5, 2);
  std::vector<Worker*> spares;
  for (int slot = 0; slot < 2; ++slot) {
    spares.push_back(MakeElastic(2, 5, slot, "host-b"));
    spares[slot]->request.catch_up_address = absl::StrCat("host-b:", slot);
  }
  Join(spares[0]);
  Pass(absl::Seconds(2));
  ASSERT_THAT(observer_.catch_ups, ElementsAre("job 1: host-b:0 0"));
  ReportSpare(membership_.get(), team[0], spares[0], /*settled=*/true);
  Pass(absl::Seconds(2));
  Join(spares[1]);
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.catch_ups,
              ElementsAre("job 1: host-b:0 0", "job 1: host-b:1 0"));
  Beat(team);
  // As long as if it had come first: from the first one on.
  Pass(absl::Seconds(9));
  Beat(team);
  Pass(absl::Seconds(9));
  Beat(team);
  Pass(absl::Seconds(7));
  EXPECT_THAT(observer_.regroups, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups,
              ElementsAre("job 1: 2 workers wait to join: host-b/0, host-b/1"));
}

TEST_F(ElasticTest, AfterARegroupInVainCatchingUpWaitsAsTheNextOne) {
  const auto team = RunElastic(2, 4, 2);
  Worker* gone = MakeElastic(2, 4, 0, "host-b");
  Join(gone);
  Pass(absl::Seconds(5));
  ASSERT_THAT(observer_.regroups, SizeIs(1));
  ASSERT_OK(Leave(team[0], /*rejoin=*/true));
  membership_->ReportExit(gone->exit(9));
  Rejoin(team[0]);
  ASSERT_OK(Leave(team[1], /*rejoin=*/true));
  Rejoin(team[1]);
  ASSERT_EQ(team[1]->joined().generation, Generation(2));
  for (Worker* worker : team) Attach(worker);
  Worker* spare = MakeElastic(2, 4, 1, "host-b");
  spare->request.catch_up_address = "host-b:7";
  Join(spare);
  // Its age is to be twice the usual one.
  Pass(absl::Seconds(4));
  EXPECT_THAT(observer_.catch_ups, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.catch_ups, ElementsAre("job 2: host-b:7 0"));
  ReportSpare(membership_.get(), team[0], spare, /*settled=*/true);
  Beat(team);
  Pass(absl::Seconds(4));
  EXPECT_THAT(observer_.regroups, SizeIs(1));
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.regroups, SizeIs(2));
}

TEST_F(ElasticTest, ALossWaitsForNoSpareThatCatchesUp) {
  const auto team = RunElastic(2, 3, 2);
  std::vector<Worker*> spares;
  for (int slot = 0; slot < 2; ++slot) {
    spares.push_back(MakeElastic(2, 3, slot, "host-b"));
    spares[slot]->request.catch_up_address = absl::StrCat("host-b:", slot);
    Join(spares[slot]);
  }
  Pass(absl::Seconds(6));
  // There is room for one.
  ASSERT_THAT(observer_.catch_ups, ElementsAre("job 1: host-b:0 0"));
  membership_->ReportExit(spares[0]->exit(9));
  Pass(absl::Seconds(1));
  EXPECT_THAT(observer_.catch_ups,
              ElementsAre("job 1: host-b:0 0", "job 1: host-b:1 0"));
  EXPECT_THAT(observer_.regroups, IsEmpty());
  membership_->ReportExit(team[0]->exit(9));
  Rejoin(team[1]);
  ASSERT_THAT(spares[1]->answers, SizeIs(1)) << "a loss waits for nothing";
  EXPECT_OK(spares[1]->answers[0]);
}

TEST_F(ElasticTest, ARejoinWithoutALeaveIsOne) {
  const auto team = RunElastic(2, 4, 2);
  Rejoin(team[0]);
  EXPECT_EQ(Description().members[0].state, MemberState::kLeft);
  EXPECT_THAT(observer_.left, ElementsAre("job 1 0"));
  Rejoin(team[1]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  ASSERT_OK(team[0]->answers[1]);
  EXPECT_EQ(team[0]->joined().generation, Generation(2));
}

TEST_F(ElasticTest, SparesOfAFinishedJobHaveNothingToDo) {
  const auto team = RunElastic(1, 2, 2);
  Worker* spare = MakeElastic(1, 2, 0, "host-b");
  Join(spare);
  ASSERT_OK(Leave(team[0], /*rejoin=*/false));
  EXPECT_THAT(spare->answers, IsEmpty());
  ASSERT_OK(Leave(team[1], /*rejoin=*/false));
  EXPECT_THAT(spare->answers.at(0), StatusIs(absl::StatusCode::kCancelled,
                                             HasSubstr("left cleanly")));
  EXPECT_TRUE(DetailOf(spare->answers[0].status()).has_job_finished());
  EXPECT_EQ(Description().state, JobState::kEnded);
  // The name is free for another job.
  ++launcher_;
  Worker* next = MakeElastic(1, 1, 0);
  Join(next);
  ASSERT_OK(next->answers.at(0));
  EXPECT_EQ(next->joined().previous, Generation(0));
}

TEST_F(ElasticTest, ADrainedMemberLeavesCleanly) {
  const auto team = RunElastic(1, 3, 3);
  ASSERT_OK(Leave(team[1], /*rejoin=*/false, "the node is drained"));
  ASSERT_OK(Leave(team[0], /*rejoin=*/true));
  Rejoin(team[0]);
  ASSERT_OK(Leave(team[2], /*rejoin=*/true));
  Rejoin(team[2]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  ASSERT_OK(team[0]->answers[1]);
  ASSERT_THAT(*team[0]->joined().lost, SizeIs(1));
  EXPECT_TRUE(team[0]->joined().lost->front().left);
  EXPECT_EQ(team[0]->joined().lost->front().reason, "the node is drained");
  // One that changes its mind.
  ASSERT_OK(Leave(team[0], /*rejoin=*/true));
  ASSERT_OK(Leave(team[2], /*rejoin=*/true));
  ASSERT_OK(Leave(team[2], /*rejoin=*/false));
  Rejoin(team[0]);
  ASSERT_THAT(team[0]->answers, SizeIs(3));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(1));
}

TEST_F(ElasticTest, WorkersOfAnEarlierAttemptAreRefused) {
  const auto team = RunElastic(1, 2, 2);
  Worker* spare = MakeElastic(1, 2, 5);
  Join(spare);
  Worker* later = MakeElastic(1, 3, 0, "host-b");  // and another manifest
  later->request.attempt = 2;
  Join(later);
  ExpectAborted(*team[0], "attempt 2 of job 'job' begins");
  EXPECT_THAT(
      spare->answers.at(0),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("attempt 2")));
  Rejoin(team[0]);
  EXPECT_THAT(team[0]->answers.at(1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("belongs to attempt 0"),
                             HasSubstr("attempt 2 has begun"))));
  Pass(absl::Seconds(5));
  ASSERT_OK(later->answers.at(0)) << "nobody of before is waited for";
  EXPECT_EQ(later->joined().previous, Generation(0));
  EXPECT_EQ(Description().attempt, 2);

  Attach(later);
  ASSERT_OK(Leave(later, /*rejoin=*/false));
  Worker* late = MakeElastic(1, 3, 1, "host-b");
  late->request.attempt = 2;
  Join(late);
  EXPECT_THAT(late->answers.at(0),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("attempt 2")));
  EXPECT_TRUE(DetailOf(late->answers[0].status()).has_job_finished());
  // One of the first attempt, that its launcher has yet to end.
  Worker* early = MakeElastic(1, 1, 1, "host-b");
  Join(early);
  EXPECT_THAT(early->answers.at(0),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("attempt 2 has begun")));
}

// Of a launcher that starts a worker anew with the incarnation of another one.
TEST_F(ElasticTest, ARefusedJoinEndsNoGeneration) {
  const auto team = RunElastic(1, 4, 2);
  Worker* const spare = MakeElastic(1, 4, 3);
  Join(spare);
  Worker* const twin = MakeElastic(1, 4, 0);
  twin->request.incarnation = spare->request.incarnation;
  Join(twin);
  ASSERT_THAT(twin->answers, SizeIs(1));
  EXPECT_FALSE(twin->answers[0].ok());
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(team[0]->events, IsEmpty());
  EXPECT_THAT(spare->answers, IsEmpty());
}

TEST_F(ElasticTest, ARefusedMemberEndsNoGeneration) {
  const auto team = RunElastic(1, 4, 2);
  launcher_ = 8;
  Worker* const waits = MakeElastic(1, 4, 0);
  membership_->Detach(team[0]->attachment);
  Join(waits);  // in case that the member is gone
  ASSERT_THAT(waits->answers, IsEmpty());
  team[0]->request.after_generation =
      Generation(team[0]->joined().generation.value() + 1);
  Join(team[0]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_FALSE(team[0]->answers[1].ok());
  EXPECT_EQ(Description().members[0].state, MemberState::kDetached);
}

TEST_F(ElasticTest, AnAttemptThatIsRefusedEndsNothing) {
  Worker* const one = MakeElastic(2, 2, 0);
  Worker* const other = MakeElastic(2, 2, 1);
  other->request.manifest.hook = "bf16";
  Join(one);
  Join(other);
  Pass(options_.mismatch_settle);
  ASSERT_THAT(other->answers, SizeIs(1));
  ASSERT_FALSE(other->answers[0].ok());
  launcher_ = 8;
  Worker* const waits = MakeElastic(2, 2, 0);
  Join(waits);
  other->request.attempt = 1;
  Join(other);
  ASSERT_THAT(other->answers, SizeIs(2));
  EXPECT_FALSE(other->answers[1].ok()) << "its launcher has been refused";
  EXPECT_THAT(waits->answers, IsEmpty());
  EXPECT_EQ(Description().attempt, 0);
}

// No member goes on from the generation that its attempt has ended.
TEST_F(ElasticTest, ALaterAttemptOfAMemberBeginsAnew) {
  const auto team = RunElastic(1, 2, 2);
  team[0]->request.attempt = 1;
  team[0]->request.manifest.hook = "bf16";
  Rejoin(team[0]);
  Pass(options_.last_call);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_OK(team[0]->answers[1]);
}

TEST_F(ElasticTest, OnlyTheSameManifestMayJoinSurvivors) {
  const auto team = RunElastic(1, 3, 3);
  Worker* other = MakeElastic(1, 3, 0, "host-z");
  other->request.manifest.hook = "bf16";
  Join(other);
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("hook: allreduce on host-a/0, bf16 here"));
  EXPECT_THAT(other->answers.at(0), refused) << "as a spare";
  Worker* range = MakeElastic(2, 3, 1, "host-z");
  Join(range);
  EXPECT_THAT(range->answers.at(0),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("min_world_size: 1 on host-a/0, 2 here")));

  membership_->ReportExit(team[1]->exit(9));
  Join(other);
  EXPECT_THAT(other->answers, SizeIs(1)) << "it may be a new job";
  Rejoin(team[0]);
  EXPECT_THAT(other->answers.at(1), refused) << "it is not";
  Join(other);
  EXPECT_THAT(other->answers.at(2), refused);
  team[2]->request.manifest.hook = "bf16";
  Rejoin(team[2]);
  EXPECT_THAT(team[2]->answers.at(1), refused);
  team[2]->request.manifest.hook = "allreduce";
  Join(team[2]);
  EXPECT_OK(team[2]->answers.at(2));
}

TEST_F(ElasticTest, SurvivorsOfAFixedSizeWaitForAReplacement) {
  const auto team = Run(4);
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  Rejoin(team[2]);
  Pass(absl::Seconds(20));
  EXPECT_EQ(Description().state, JobState::kForming);
  Worker* first = Make(4, 1);
  Join(first);
  membership_->ReportExit(first->exit(9));
  EXPECT_THAT(team[0]->answers, SizeIs(1)) << "the round goes on";
  Worker* second = Make(4, 1);
  Join(second);
  Rejoin(team[3]);
  ASSERT_OK(second->answers.at(0));
  EXPECT_EQ(second->joined().rank, 1);
  EXPECT_EQ(team[0]->joined().generation, Generation(2));
}

TEST_F(ElasticTest, AnExpiredRoundNamesTheMissingSurvivors) {
  const auto team = RunElastic(3, 4, 4);
  membership_->ReportExit(team[1]->exit(9));
  Rejoin(team[0]);
  Rejoin(team[3]);
  Pass(absl::Seconds(30));
  EXPECT_THAT(team[0]->answers.at(1),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("2 of 3 workers have joined; 1 missing"),
                             HasSubstr("here: host-a/0, host-a/3"),
                             HasSubstr("not back: host-a/2"))));
  const auto detail = DetailOf(team[0]->answers[1].status());
  EXPECT_THAT(detail.missing_members().missing_ranks(), ElementsAre(2));
}

TEST_F(ElasticTest, SparesAreLimited) {
  options_.max_spares_per_job = 1;
  Restart();
  RunElastic(1, 2, 2);
  std::vector<Worker*> spares;
  for (int slot = 0; slot < 4; ++slot) {
    spares.push_back(MakeElastic(1, 2, slot, "host-z"));
    Join(spares.back());
  }
  EXPECT_THAT(spares[0]->answers, IsEmpty());
  for (int slot = 1; slot < 4; ++slot) {
    EXPECT_THAT(spares[slot]->answers.at(0),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("max_spares_per_job is 1")));
  }
}

TEST_F(ElasticTest, ADetachedMemberThatPeersCannotReachEitherIsLostSoon) {
  const auto team = RunElastic(1, 3, 3);
  membership_->NotePeersBroken(team[0]->attachment, {2, 0, 77, -1});
  Pass(absl::Milliseconds(900));
  EXPECT_EQ(Description().state, JobState::kRunning);
  membership_->Detach(team[2]->attachment);
  membership_->Detach(team[1]->attachment);
  Pass(absl::Milliseconds(900));
  EXPECT_EQ(Description().state, JobState::kRunning);
  Pass(absl::Milliseconds(100));
  ExpectAborted(*team[0], "rank 2");
  EXPECT_THAT(Description().last_event, HasSubstr("to its peers broke"));
}

TEST_F(ElasticTest, ComingBackForgetsWhatPeersReported) {
  const auto team = RunElastic(1, 2, 2);
  membership_->NotePeersBroken(team[0]->attachment, {1});
  membership_->Detach(team[1]->attachment);
  Attach(team[1]);
  membership_->Detach(team[1]->attachment);
  Pass(absl::Seconds(9));
  EXPECT_EQ(Description().state, JobState::kRunning);
  // A report of one that has no connection itself does not count.
  membership_->NotePeersBroken(team[1]->attachment, {0});
  membership_->Detach(team[0]->attachment);
  Attach(team[1]);
  Pass(absl::Seconds(9));
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(ElasticTest, WithAFullDiskNoMemberHasLeft) {
  const auto team = RunElastic(1, 2, 2);
  store_.FailWrites(absl::UnavailableError("disk full"));
  EXPECT_THAT(Leave(team[0], false),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_EQ(Description().members[0].state, MemberState::kAttached);
  EXPECT_THAT(team[1]->events, IsEmpty());
  // But who failed must stop the others.
  EXPECT_THAT(membership_->Leave(team[0]->fence(), "broken", true),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  ExpectAborted(*team[1], "failed: broken");
  Rejoin(team[1]);
  EXPECT_THAT(team[1]->answers.at(1),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  store_.FailWrites(absl::OkStatus());
  EXPECT_OK(membership_->Leave(team[0]->fence(), "broken", true));
  Join(team[1]);
  ASSERT_OK(team[1]->answers.at(2));
  EXPECT_THAT(*team[1]->joined().members, SizeIs(1));
}

TEST_F(ElasticTest, AReplacedProcessDoesNotComeBack) {
  const auto team = RunElastic(2, 3, 3);
  Worker* fresh = MakeElastic(2, 3, 1);
  Join(fresh);
  ExpectAborted(*team[0], "a new process took its place");
  const auto refused =
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("end this one"));
  Rejoin(team[1]);
  EXPECT_THAT(team[1]->answers.at(1), refused);
  Rejoin(team[0]);
  Rejoin(team[2]);
  ASSERT_OK(fresh->answers.at(0));
  Join(team[1]);
  EXPECT_THAT(team[1]->answers.at(2), refused);
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(ElasticTest, AFailedMemberMayBeInTheNextGeneration) {
  const auto team = RunElastic(1, 2, 2);
  ASSERT_OK(membership_->Leave(team[1]->fence(), "a bad step", true, true));
  Rejoin(team[0]);
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  Rejoin(team[1]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().lost, IsEmpty());
}

TEST_F(ElasticTest, ACallToAnOldCoordinatorIsReferredToAnother) {
  const auto team = RunElastic(1, 2, 2);
  store_.FailWrites(absl::AbortedError("another coordinator leads"));
  const auto elsewhere = StatusIs(absl::StatusCode::kUnavailable,
                                  HasSubstr("another coordinator leads"));
  EXPECT_THAT(Leave(team[0], true), elsewhere);
  membership_->ReportExit(team[0]->exit(9));
  Rejoin(team[1]);
  EXPECT_THAT(team[1]->answers.at(1), elsewhere);
}

TEST_F(ElasticTest, ANewProcessOfARejoiningMemberTakesItsRank) {
  const auto team = RunElastic(2, 3, 3);
  ASSERT_OK(Leave(team[0], true));
  Rejoin(team[0]);
  membership_->ReportExit(team[0]->exit(9));
  EXPECT_THAT(team[0]->answers.at(1),
              StatusIs(absl::StatusCode::kAborted, testing::_));
  Worker* again = MakeElastic(2, 3, 0);
  Join(again);
  ASSERT_OK(Leave(team[1], true));
  ASSERT_OK(Leave(team[2], true));
  Rejoin(team[2]);
  EXPECT_THAT(again->answers, IsEmpty());
  Rejoin(team[1]);
  ASSERT_OK(again->answers.at(0));
  EXPECT_EQ(again->joined().rank, 0);
  EXPECT_EQ(team[2]->joined().rank, 2);
}

}  // namespace
}  // namespace coxswain::server
