// Whom the membership takes for whom: processes that come for a place that
// another one has, or had.

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "server/membership/membership_fixture.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class PlaceTest : public MembershipTest {
 protected:
  static constexpr uint64_t kOtherLauncher = 99;

  Worker* MakeOther(int min, int max, int slot) {
    Worker* const other = MakeElastic(min, max, slot);
    other->request.launcher_id = kOtherLauncher;
    return other;
  }
  static auto IsTaken() {
    return StatusIs(absl::StatusCode::kAlreadyExists,
                    HasSubstr("another live process is worker"));
  }
};

TEST_F(PlaceTest, AfterARestartPeersDoNotShortenTheGrace) {
  const auto team = RunElastic(1, 3, 3);
  Restart();
  Attach(team[0]);
  clock_.Advance(absl::Milliseconds(1100));
  membership_->Tick();
  membership_->NotePeersBroken(team[0]->attachment, {1, 2});
  membership_->Tick();
  EXPECT_EQ(Description().state, JobState::kRunning);
  // Once it has attached, its own connection counts.
  Attach(team[1]);
  Attach(team[2]);
  membership_->Detach(team[1]->attachment);
  membership_->NotePeersBroken(team[0]->attachment, {1});
  Pass(absl::Seconds(1));
  ExpectAborted(*team[0], "rank 1");
}

TEST_F(PlaceTest, AnotherLaunchersDuplicateDoesNotEndAResumedGeneration) {
  const auto team = RunElastic(1, 2, 2);
  Restart();
  Worker* other = MakeOther(1, 2, 0);
  Join(other);
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(other->answers, IsEmpty());
  Attach(team[1]);
  Attach(team[0]);
  EXPECT_THAT(other->answers.at(0), IsTaken());
  Join(other);
  EXPECT_THAT(other->answers.at(1), IsTaken());
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(observer_.ended, IsEmpty());
}

TEST_F(PlaceTest, AnotherLaunchersProcessComesInOnceTheGraceIsOver) {
  const auto team = RunElastic(2, 4, 2);
  Beat(team);
  Pass(absl::Seconds(6));
  Beat(team);
  membership_->Detach(team[0]->attachment);
  Worker* other = MakeOther(2, 4, 0);
  Join(other);
  Pass(absl::Seconds(3));
  EXPECT_THAT(observer_.regroups, IsEmpty()) << "it makes nothing larger";
  Beat({team[1]});
  Pass(options_.reattach_grace - absl::Seconds(4));
  EXPECT_EQ(Description().state, JobState::kRunning);
  Pass(absl::Seconds(1));
  ExpectAborted(*team[1], "did not come back");
  Rejoin(team[1]);
  ASSERT_OK(other->answers.at(0));
  EXPECT_EQ(other->joined().rank, 0);
}

TEST_F(PlaceTest, ASurvivorGoesBeforeAnotherLaunchersDuplicate) {
  const auto team = RunElastic(1, 3, 3);
  membership_->Detach(team[0]->attachment);
  Worker* other = MakeOther(1, 3, 0);
  Join(other);
  membership_->ReportExit(team[2]->exit(9));
  Rejoin(team[0]);
  EXPECT_THAT(other->answers.at(0), IsTaken());
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  Rejoin(team[1]);
  ASSERT_OK(team[0]->answers.at(1));
  EXPECT_EQ(team[0]->joined().reason,
            "all 2 survivors are back, 2 of at most 3 workers");
}

TEST_F(PlaceTest, SparesLockNoSurvivorOut) {
  options_.max_spares_per_job = 1;
  Restart();
  const auto team = RunElastic(1, 2, 2);
  Worker* spare = MakeElastic(1, 2, 5);
  Join(spare);
  Worker* more = MakeElastic(1, 2, 6);
  Join(more);
  EXPECT_THAT(more->answers, SizeIs(1));
  // A member that is back early.
  ASSERT_OK(Leave(team[0], true));
  Rejoin(team[0]);
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  membership_->ReportExit(team[1]->exit(9));
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  ASSERT_OK(team[0]->answers[1]);
  ASSERT_OK(spare->answers.at(0));

  for (int slot = 10; slot < 14; ++slot) Join(MakeElastic(1, 2, slot));
  EXPECT_THAT(Description().spares, SizeIs(1));
  Attach(team[0]);
  Attach(spare);
  membership_->ReportExit(spare->exit(9));
  for (int slot = 20; slot < 24; ++slot) Join(MakeElastic(1, 2, slot));
  EXPECT_THAT(Description().members, SizeIs(3)) << "the world, and one spare";
  Rejoin(team[0]);
  ASSERT_THAT(team[0]->answers, SizeIs(3));
  EXPECT_OK(team[0]->answers[2]);
}

TEST_F(PlaceTest, ANewProcessIsNoSurvivor) {
  const auto team = RunElastic(1, 3, 3);
  Worker* spare = MakeElastic(1, 3, 9);
  Join(spare);
  membership_->ReportExit(team[2]->exit(9));
  // Its launcher has not reported its end.
  Worker* fresh = MakeElastic(1, 3, 1);
  Join(fresh);
  EXPECT_EQ(Description().state, JobState::kForming)
      << "one of two survivors may still come";
  Rejoin(team[0]);
  ASSERT_THAT(fresh->answers, SizeIs(1)) << "the other one is not awaited";
  ASSERT_OK(fresh->answers[0]);
  EXPECT_EQ(fresh->joined().rank, 1) << "it has its rank";
  ASSERT_THAT(*fresh->joined().lost, SizeIs(2));
  EXPECT_EQ(fresh->joined().lost->front().reason,
            "a new process took its place");
}

TEST_F(PlaceTest, NewProcessesAloneDoNotMakeUpTheSurvivors) {
  const auto team = RunElastic(1, 3, 2);
  membership_->ReportExit(team[1]->exit(9));
  Worker* other = MakeOther(1, 3, 0);
  Join(other);
  EXPECT_THAT(other->answers, IsEmpty()) << "the survivor may still come";
  Rejoin(team[0]);
  EXPECT_THAT(other->answers.at(0), IsTaken());
  ASSERT_OK(team[0]->answers.at(1));
}

TEST_F(PlaceTest, AnAttemptThatBeganAnewDoesSoAfterARestart) {
  const auto team = RunElastic(1, 3, 3);
  Worker* later = MakeElastic(1, 3, 7);
  later->request.attempt = 2;
  Join(later);
  EXPECT_THAT(later->answers, IsEmpty());
  Restart();
  EXPECT_EQ(Description().state, JobState::kEnded);
  later->answers.clear();
  Join(later);
  Pass(options_.last_call);
  ASSERT_OK(later->answers.at(0)) << "nobody of before is waited for";
  EXPECT_EQ(later->joined().rank, 0);
  EXPECT_EQ(later->joined().previous, Generation(0));
  Restart();
  Attach(later);
  EXPECT_EQ(Description().state, JobState::kRunning);
  membership_->ReportExit(later->exit(9));
  Restart();
  Worker* again = MakeElastic(1, 3, 7);
  again->request.attempt = 2;
  Join(again);
  Pass(options_.last_call);
  ASSERT_OK(again->answers.at(0));
  EXPECT_EQ(again->joined().previous, later->joined().generation);
}

TEST_F(PlaceTest, AReportIsAnsweredOnceItIsWritten) {
  const auto team = RunElastic(1, 2, 2);
  std::vector<absl::Status> answers;
  const auto report = [&] {
    membership_->ReportExit(team[0]->exit(9), [&](const absl::Status& status) {
      answers.push_back(status);
    });
  };
  store_.FailWrites(absl::ResourceExhaustedError("disk full"));
  report();
  EXPECT_EQ(Description().state, JobState::kEnded) << "it counts at once";
  EXPECT_THAT(answers.at(0), StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr("report it again")));
  report();
  EXPECT_THAT(answers.at(1),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  store_.FailWrites(absl::OkStatus());
  Pass(absl::Seconds(1));
  report();
  EXPECT_OK(answers.at(2));
  membership_->Shutdown();
  report();
  EXPECT_THAT(answers.at(3),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST_F(PlaceTest, OfALongListOfBrokenPeersAsManyCountAsThereAre) {
  const auto team = RunElastic(1, 3, 3);
  std::vector<int> ranks(1'000'000, 77);
  ranks[2] = 1;
  ranks[3] = 2;  // one too many
  membership_->NotePeersBroken(team[0]->attachment, ranks);
  membership_->Detach(team[2]->attachment);
  Pass(options_.broken_peer_grace);
  EXPECT_EQ(Description().state, JobState::kRunning);
  Attach(team[2]);
  membership_->NotePeersBroken(team[0]->attachment, ranks);
  membership_->Detach(team[1]->attachment);
  Pass(options_.broken_peer_grace);
  ExpectAborted(*team[0], "rank 1");
}

}  // namespace
}  // namespace coxswain::server
