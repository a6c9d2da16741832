// How generations end that do not end all at once, and what is left of them.

#include <functional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "server/membership/membership_fixture.h"
#include "server/membership/round.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using EndTest = MembershipTest;

TEST(GrowthAgeTest, DoublesUpToABound) {
  EXPECT_EQ(GrowthAge(absl::Seconds(5), 0), absl::Seconds(5));
  EXPECT_EQ(GrowthAge(absl::Seconds(5), 2), absl::Seconds(20));
  EXPECT_EQ(GrowthAge(absl::Seconds(5), 1000), absl::Seconds(320));
}

TEST_F(EndTest, AMemberThatDoesNotRegroupIsLost) {
  const auto team = RunElastic(1, 3, 3);
  for (Worker* worker : {team[0], team[1]}) {
    ASSERT_OK(Leave(worker, true));
    Rejoin(worker);
  }
  for (int i = 0; i < 29; ++i) {
    Beat({team[2]});
    Pass(absl::Seconds(1));
  }
  EXPECT_EQ(Description().state, JobState::kRunning);
  Beat({team[2]});
  Pass(absl::Seconds(1));
  EXPECT_THAT(team[2]->events.at(team[2]->events.size() - 2).reason,
              HasSubstr("did not leave for the next generation within 30s"));
  Pass(options_.last_call);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  ASSERT_OK(team[0]->answers[1]);
  EXPECT_THAT(*team[0]->joined().members, SizeIs(2));
}

TEST_F(EndTest, ALossAfterAllOthersAreDoneEndsTheJobWell) {
  const auto team = RunElastic(1, 2, 2);
  Worker* spare = MakeElastic(1, 2, 0, "host-b");
  Join(spare);
  ASSERT_OK(Leave(team[0], false));
  membership_->ReportExit(team[1]->exit(9));
  ASSERT_THAT(spare->answers, SizeIs(1));
  EXPECT_THAT(spare->answers[0],
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("signal 9")));
  EXPECT_TRUE(DetailOf(spare->answers[0].status()).has_job_finished());
  // The launcher starts it again; who comes for a new run may have one.
  Worker* again = MakeElastic(1, 2, 1);
  Join(again);
  ASSERT_THAT(again->answers, SizeIs(1));
  EXPECT_TRUE(DetailOf(again->answers[0].status()).has_job_finished());
  Worker* other = MakeElastic(1, 2, 1);
  other->request.launcher_id = 8;
  Join(other);
  EXPECT_THAT(other->answers, IsEmpty());
}

TEST_F(EndTest, ALossAfterADrainIsNotTheEnd) {
  const auto team = RunElastic(1, 2, 2);
  Worker* spare = MakeElastic(1, 2, 0, "host-b");
  Join(spare);
  AskToYield(Generation(1));
  ASSERT_OK(Leave(team[0], false, "drained"));
  membership_->ReportExit(team[1]->exit(9));
  Pass(options_.last_call);
  ASSERT_THAT(spare->answers, SizeIs(1));
  EXPECT_OK(spare->answers[0]);
}

TEST_F(EndTest, AFailedMemberHasNotLeftCleanly) {
  const auto team = RunElastic(1, 3, 3);
  ASSERT_OK(membership_->Leave(team[0]->fence(), "out of memory", true));
  Rejoin(team[1]);
  Rejoin(team[2]);
  ASSERT_OK(team[1]->answers.at(1));
  ASSERT_THAT(*team[1]->joined().lost, SizeIs(1));
  EXPECT_FALSE(team[1]->joined().lost->front().left);
  EXPECT_EQ(team[1]->joined().lost->front().reason, "out of memory");
}

TEST_F(EndTest, EachExitIsAnsweredWithTheLossThatEndedTheGeneration) {
  const auto team = Run(3);
  EXPECT_FALSE(membership_->EndOf(team[1]->exit(9)).has_value());
  membership_->ReportExit(team[1]->exit(9));
  for (const Worker* worker : team) {
    const auto end = membership_->EndOf(worker->exit(0));
    ASSERT_TRUE(end.has_value());
    EXPECT_THAT(end->reason, HasSubstr("was lost: killed by signal 9"));
    ASSERT_TRUE(end->lost.has_value());
    EXPECT_EQ(end->lost->rank, 1);
  }
  // Of another launcher, or of no member.
  ExitReport other = team[0]->exit(0);
  other.incarnation = Incarnation(999);
  EXPECT_FALSE(membership_->EndOf(other).has_value());
  other.job = "unknown";
  EXPECT_FALSE(membership_->EndOf(other).has_value());
}

TEST_F(EndTest, AGenerationThatEndedWellHasNoCause) {
  const auto team = Run(2);
  for (Worker* worker : team) ASSERT_OK(Leave(worker, false));
  EXPECT_FALSE(membership_->EndOf(team[0]->exit(0)).has_value());
}

TEST_F(EndTest, ASlowCommitCostsNoMemberTheJob) {
  const auto other = Run(2, "z");
  Worker* one = MakeElastic(1, 2, 0);
  Join(one);
  for (int i = 0; i < 4; ++i) {
    Beat(other);
    Pass(absl::Seconds(1));
  }
  Beat(other);
  int commits = 0;
  store_.on_apply = [&] {
    // The last of the three that begin a generation. Meanwhile others live on.
    if (++commits != 3) return;
    for (int i = 0; i < 3; ++i) {
      clock_.Advance(options_.lease / 2);
      Beat(other);
    }
  };
  Pass(absl::Seconds(1));
  EXPECT_EQ(commits, 3);
  EXPECT_EQ(Description("z").state, JobState::kRunning);
  Pass(absl::Milliseconds(50));
  EXPECT_EQ(Description("z").state, JobState::kRunning);
  EXPECT_EQ(Description().state, JobState::kRunning);
}

// Advances the clock when a generation ends, as if others had much to do then.
class SlowObserver : public GenerationObserver {
 public:
  explicit SlowObserver(FakeClock* clock) : clock_(*clock) {}
  void OnGenerationEnded(absl::string_view, Generation,
                         const absl::Status&) override {
    clock_.Advance(absl::Seconds(8));
  }

 private:
  FakeClock& clock_;
};

TEST_F(EndTest, WhatALookTakesIsNoStandingStill) {
  SlowObserver slow(&clock_);
  membership_->AddObserver(&slow);
  const auto first = Run(1, "a");
  Pass(absl::Seconds(5));
  const auto second = Run(1, "b");
  Pass(absl::Seconds(4));
  EXPECT_EQ(Description("a").state, JobState::kRunning);
  // The lease of "a" is over; telling so takes until that of "b" is over, too.
  Pass(absl::Seconds(1));
  EXPECT_EQ(Description("a").state, JobState::kEnded);
  EXPECT_EQ(Description("b").state, JobState::kRunning);
  Pass(absl::Seconds(1));
  EXPECT_EQ(Description("b").state, JobState::kEnded);
  EXPECT_THAT(Description("b").last_event, HasSubstr("no sign of life"));
}

TEST_F(EndTest, TablesOfGenerationsThatNeverBeganAreDropped) {
  int writes = 0;  // of one round
  store_.on_apply = [&] { store_.writes_left = ++writes <= 2 ? 1 : 0; };
  for (int i = 0; i < 100; ++i) {
    Worker* worker = MakeElastic(1, 1, 0);
    writes = 0;
    Join(worker);
    ASSERT_THAT(worker->answers, SizeIs(1));
    EXPECT_FALSE(worker->answers[0].ok());
  }
  EXPECT_THAT(*store_.Tables("members/"), SizeIs(100));
  membership_->Tick();
  EXPECT_THAT(*store_.Tables("members/"), SizeIs(100)) << "the disk is full";
  store_.on_apply = nullptr;
  store_.writes_left = 1000;
  Pass(absl::Seconds(3));
  EXPECT_THAT(*store_.Tables("members/"), IsEmpty());
  EXPECT_THAT(*store_.Tables("manifest/"), IsEmpty());
}

TEST_F(EndTest, GrowthIsCancelledOnceTheSparesWithdraw) {
  const auto team = RunElastic(1, 3, 2);
  Worker* spare = MakeElastic(1, 3, 0, "host-b");
  Join(spare);
  for (int i = 0; i < 6; ++i) {
    Beat(team);
    Pass(absl::Seconds(1));
  }
  ASSERT_FALSE(observer_.regroups.empty());
  membership_->Withdraw(spare->join_id);
  const size_t before = observer_.regroups.size();
  Pass(absl::Seconds(2));
  ASSERT_THAT(observer_.regroups, SizeIs(before + 1));
  EXPECT_EQ(observer_.regroups.back(), "job 1: ");
  // It ended for no newcomer: the next one takes its time.
  for (Worker* worker : team) {
    ASSERT_OK(Leave(worker, true));
    Rejoin(worker);
  }
  for (Worker* worker : team) Attach(worker);
  ASSERT_EQ(Description().generation, Generation(2));
  Join(spare);
  observer_.regroups.clear();
  for (int i = 0; i < 9; ++i) {
    Beat(team);
    Pass(absl::Seconds(1));
  }
  EXPECT_THAT(observer_.regroups, IsEmpty());
  Pass(absl::Seconds(2));
  EXPECT_FALSE(observer_.regroups.empty());
}

// Calls back when a generation begins.
class BeginObserver : public GenerationObserver {
 public:
  void OnGenerationEnded(absl::string_view, Generation,
                         const absl::Status&) override {}
  void OnGenerationBegan(const GenerationBegin&) override { began(); }
  std::function<void()> began;
};

TEST_F(EndTest, ObserversAreNotifiedOfAGenerationFirst) {
  BeginObserver begins;
  membership_->AddObserver(&begins);
  Worker* worker = MakeElastic(1, 1, 0);
  size_t received = 99;
  begins.began = [&] {
    Join(worker);  // again
    received = worker->answers.size();
  };
  Join(worker);
  EXPECT_EQ(received, 0u);
  ASSERT_THAT(worker->answers, SizeIs(2));
  EXPECT_OK(worker->answers[1]);
  Join(worker);
  EXPECT_THAT(worker->answers, SizeIs(3));
}

}  // namespace
}  // namespace coxswain::server
