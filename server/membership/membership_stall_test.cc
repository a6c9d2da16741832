// Members that are stopped or cut off, where the plan has a stall_timeout.

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "server/membership/membership_fixture.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kBeat = absl::Milliseconds(250);

class StallTest : public MembershipTest {
 protected:
  // A job of 2 to `count` workers that all train.
  std::vector<Worker*> RunWith(const std::string& stall_timeout, int count) {
    std::vector<Worker*> team;
    for (int slot = 0; slot < count; ++slot) {
      team.push_back(MakeElastic(2, count, slot));
      if (!stall_timeout.empty()) {
        team.back()->request.manifest.terms["stall_timeout"] = stall_timeout;
      }
      Join(team.back());
    }
    for (Worker* worker : team) Attach(worker);
    // From now on silence counts.
    membership_->Tick();
    return team;
  }
  // Lets time pass, while these send heartbeats that report a wait.
  void PassWith(const std::vector<Worker*>& team, absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= kBeat) {
      clock_.Advance(kBeat);
      waited_ += kBeat;
      for (const Worker* worker : team) {
        Progress progress = MakeProgress(7, 12);
        progress.interval = kBeat;
        progress.waiting = waits_ ? waited_ : absl::ZeroDuration();
        // Its stream may have been closed.
        membership_->Heartbeat(worker->attachment, progress).IgnoreError();
      }
      membership_->Tick();
    }
  }

  // Returns whether its generation has ended, as far as it was sent.
  static bool Ended(const Worker& worker) {
    return !worker.events.empty() &&
           worker.events.back().kind == FlatEvent::Kind::kClosed;
  }

  bool waits_ = true;
  absl::Duration waited_;
};

TEST_F(StallTest, ItsHeartbeatsComeOftenEnough) {
  EXPECT_EQ(RunWith("1s", 2)[0]->joined().heartbeat_interval, kBeat);
}

TEST_F(StallTest, AStoppedMemberIsLostAndNamedAndTheOthersGoOn) {
  const auto team = RunWith("1s", 3);
  PassWith({team[0], team[2]}, absl::Seconds(1));
  ExpectAborted(*team[0], "rank 1 (host-a/1");
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_THAT(
      team[0]->events[0].reason,
      AllOf(HasSubstr("was lost: no sign of life for 1s"),
            HasSubstr("all others wait"), HasSubstr("stall_timeout=1s")));
  Rejoin(team[0]);
  Rejoin(team[2]);
  ASSERT_THAT(team[2]->answers, SizeIs(2))
      << "nobody waits for the stopped one";
  EXPECT_THAT(*team[2]->joined().members, SizeIs(2));
}

TEST_F(StallTest, TwoStoppedMembersAreLostAtOnce) {
  const auto team = RunWith("1s", 4);
  PassWith({team[0], team[2]}, absl::Seconds(1));
  Rejoin(team[0]);
  Rejoin(team[2]);
  ASSERT_THAT(team[2]->answers, SizeIs(2));
  EXPECT_THAT(*team[2]->joined().members, SizeIs(2));
  EXPECT_THAT(*team[2]->joined().lost, SizeIs(2));
}

TEST_F(StallTest, ByDefaultPausesEvictNobody) {
  const auto team = RunWith("", 3);
  PassWith({team[0], team[2]}, absl::Seconds(2));
  EXPECT_THAT(team[0]->events, IsEmpty());
  // As today: the lease is what ends it.
  PassWith({team[0], team[2]}, options_.lease - absl::Seconds(2) - kBeat);
  EXPECT_THAT(team[0]->events, IsEmpty());
  PassWith({team[0], team[2]}, kBeat);
  ExpectAborted(*team[0], "no sign of life for 10s");
}

TEST_F(StallTest, WhereOthersComputeOneIsNotLostForItsSilence) {
  const auto team = RunWith("1s", 3);
  waits_ = false;
  PassWith({team[0], team[2]}, absl::Seconds(5));
  EXPECT_THAT(team[0]->events, IsEmpty());
  waits_ = true;
  PassWith({team[0], team[2]}, kBeat);
  ExpectAborted(*team[0], "no sign of life for 5.25s");
}

TEST_F(StallTest, ACoordinatorThatStoodStillDoesNotTakeThatForSilence) {
  const auto team = RunWith("1s", 3);
  PassWith(team, absl::Seconds(1));
  clock_.Advance(absl::Seconds(3));
  waited_ += absl::Seconds(3);
  membership_->Tick();
  // Of what came meanwhile, it takes rank 1's heartbeat last.
  PassWith({team[0], team[2]}, kBeat);
  EXPECT_THAT(team[0]->events, IsEmpty());
  PassWith(team, absl::Seconds(2));
  EXPECT_THAT(team[0]->events, IsEmpty());
}

TEST_F(StallTest, OneThatComesBackIsFenced) {
  const auto team = RunWith("1s", 3);
  PassWith({team[0], team[2]}, absl::Seconds(1));
  ASSERT_THAT(team[1]->events, SizeIs(2));
  EXPECT_THAT(
      membership_->Attach(team[1]->fence(), [](const AttachEvent&) {}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("generation")));
  // As any worker it may join again, as a newcomer: the rest go first.
  Rejoin(team[0]);
  Rejoin(team[2]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  Rejoin(team[1]);
  EXPECT_THAT(team[1]->answers, SizeIs(1)) << "it waits as a spare";
  EXPECT_THAT(Description().spares, SizeIs(1));
}

TEST_F(StallTest, AfterARestartOneThatIsYetToAttachHasItsGrace) {
  const auto team = RunWith("1s", 3);
  PassWith(team, absl::Seconds(1));
  Restart();
  Attach(team[0]);
  Attach(team[2]);
  PassWith({team[0], team[2]}, absl::Seconds(5));
  EXPECT_THAT(team[0]->events, IsEmpty());
  Attach(team[1]);
  PassWith({team[0], team[2]}, absl::Seconds(1));
  ExpectAborted(*team[0], "rank 1 (host-a/1");
}

// ---- while a generation makes way for the next ----

TEST_F(StallTest, AMemberThatIsStoppedBeforeItMakesWayIsLost) {
  const auto team = RunWith("1s", 3);
  Rejoin(team[0]);
  Rejoin(team[2]);
  PassWith({}, absl::Seconds(1) - kBeat);
  EXPECT_THAT(team[0]->answers, SizeIs(1)) << "it has the whole timeout";
  PassWith({}, kBeat);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  ASSERT_THAT(team[2]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(2));
  ASSERT_THAT(*team[0]->joined().lost, SizeIs(1));
  EXPECT_THAT(team[0]->joined().lost->front().reason,
              HasSubstr("no sign of life for 1s"));
}

TEST_F(StallTest, OneThatComputesBeforeItMakesWayIsWaitedForByAll) {
  const auto team = RunWith("1s", 4);
  Rejoin(team[0]);
  Rejoin(team[3]);
  waits_ = false;
  PassWith({team[2]}, absl::Seconds(3));
  EXPECT_FALSE(Ended(*team[2]));
  Rejoin(team[2]);
  PassWith({}, kBeat);
  EXPECT_THAT(team[0]->answers, SizeIs(1)) << "one has only begun to wait";
  PassWith({}, kBeat);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(3));
}

TEST_F(StallTest, OneThatIsSlowToMakeWayIsNotLost) {
  const auto team = RunWith("1s", 3);
  Rejoin(team[0]);
  Rejoin(team[2]);
  waits_ = false;
  PassWith({team[1]}, absl::Seconds(5));
  EXPECT_FALSE(Ended(*team[1]));
  Rejoin(team[1]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(3));
}

TEST_F(StallTest, ACoordinatorThatStoodStillLosesNoneThatMakesWay) {
  const auto team = RunWith("1s", 3);
  Rejoin(team[0]);
  clock_.Advance(absl::Seconds(3));
  membership_->Tick();
  PassWith({team[1], team[2]}, absl::Seconds(2));
  EXPECT_FALSE(Ended(*team[1]));
  EXPECT_FALSE(Ended(*team[2]));
}

TEST_F(StallTest, ByDefaultPausesWhileAllMakeWayEvictNone) {
  const auto team = RunWith("", 3);
  Rejoin(team[0]);
  Rejoin(team[2]);
  PassWith({}, absl::Seconds(2));
  EXPECT_FALSE(Ended(*team[1]));
  Rejoin(team[1]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(3));
}

// ---- in a join round ----

class StalledRoundTest : public StallTest {
 protected:
  // Of so many, the last one is killed, the first one is back, and the second
  // one is not.
  std::vector<Worker*> RoundOf(const std::string& stall_timeout, int count) {
    auto team = RunWith(stall_timeout, count);
    membership_->ReportExit(team.back()->exit(9));
    for (size_t i = 0; i + 1 < team.size(); ++i) {
      if (i != 1) Rejoin(team[i]);
    }
    EXPECT_THAT(team[0]->answers, SizeIs(1));
    return team;
  }
  // As a worker does whose program has yet to notice the end.
  void AskToAttach(Worker* worker) {
    EXPECT_THAT(
        membership_->Attach(worker->fence(), [](const AttachEvent&) {}),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("stale")));
  }
};

TEST_F(StalledRoundTest, ASurvivorThatIsStoppedIsWaitedForNoLonger) {
  const auto team = RoundOf("1s", 4);
  PassWith({}, absl::Seconds(1) - kBeat);
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  PassWith({}, kBeat);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  ASSERT_OK(team[0]->answers[1]);
  EXPECT_THAT(*team[0]->joined().members, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().lost, SizeIs(2));
  // It may come back, as a newcomer.
  Rejoin(team[1]);
  EXPECT_THAT(team[1]->answers, SizeIs(1));
  EXPECT_THAT(Description().spares, SizeIs(1));
}

TEST_F(StalledRoundTest, ASurvivorThatComputesShowsThatItLives) {
  const auto team = RoundOf("1s", 4);
  for (int i = 0; i < 12; ++i) {
    AskToAttach(team[1]);
    PassWith({}, kBeat);
  }
  EXPECT_THAT(team[0]->answers, SizeIs(1)) << "it is waited for, as ever";
  Rejoin(team[1]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(3));
  EXPECT_THAT(*team[0]->joined().lost, SizeIs(1));
}

TEST_F(StalledRoundTest, OneOfAThousandShowsThatItLivesEveryHalfSecond) {
  const auto team = RoundOf("1s", 1000);
  // It has as many intervals as one of a few: 2 s.
  PassWith({}, absl::Seconds(2) - kBeat);
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  AskToAttach(team[1]);
  PassWith({}, absl::Seconds(2) - kBeat);
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  PassWith({}, kBeat);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().lost, SizeIs(2));
}

TEST_F(StalledRoundTest, OneThatWaitsMayGoOnAsking) {
  const auto team = RoundOf("1s", 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(team[0]->answers, SizeIs(1));
    AskToAttach(team[0]);
    AskToAttach(team[2]);
    PassWith({}, kBeat);
  }
  ASSERT_THAT(team[0]->answers, SizeIs(2)) << "both wait all the same";
  EXPECT_THAT(*team[0]->joined().members, SizeIs(2));
}

TEST_F(StalledRoundTest, OneWhoseJoinIsOnItsWayIsWaitedFor) {
  const auto team = RunWith("1s", 3);
  for (Worker* worker : team) EXPECT_OK(Leave(worker, /*rejoin=*/true));
  Rejoin(team[0]);
  Rejoin(team[2]);
  for (int i = 0; i < 12; ++i) {
    AskToAttach(team[1]);
    PassWith({}, kBeat);
  }
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  Rejoin(team[1]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(3));
}

TEST_F(StalledRoundTest, OneThatIsStoppedOnItsWayIsNotWaitedFor) {
  const auto team = RunWith("1s", 3);
  for (Worker* worker : team) EXPECT_OK(Leave(worker, /*rejoin=*/true));
  Rejoin(team[0]);
  Rejoin(team[2]);
  PassWith({}, absl::Seconds(1) - kBeat);
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  PassWith({}, kBeat);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(2));
}

TEST_F(StalledRoundTest, AJoinThatIsRefusedIsASignOfLife) {
  const auto team = RoundOf("1s", 4);
  for (int i = 0; i < 12; ++i) {
    // Another manifest than that of the job.
    JoinRequest request = team[1]->request;
    request.after_generation = team[1]->joined().generation;
    request.manifest.hook = "fp16";
    membership_->Join(request, [](const auto& result) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("hook")));
    });
    PassWith({}, kBeat);
  }
  EXPECT_THAT(team[0]->answers, SizeIs(1));
}

TEST_F(StalledRoundTest, ASurvivorWithoutWhomTheyAreTooFewIsWaitedFor) {
  const auto team = RoundOf("1s", 3);
  PassWith({}, absl::Seconds(8));
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  Rejoin(team[1]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().lost, SizeIs(1)) << "it still has its state";
}

TEST_F(StalledRoundTest, NewcomersAloneLoseNoSurvivor) {
  const auto team = RunWith("1s", 3);
  membership_->ReportExit(team[2]->exit(9));
  for (int slot = 3; slot < 5; ++slot) {
    Worker* const spare = MakeElastic(2, 3, slot);
    spare->request.manifest.terms["stall_timeout"] = "1s";
    Join(spare);
  }
  PassWith({}, absl::Seconds(5));
  EXPECT_THAT(workers_.back().answers, IsEmpty()) << "the state is still there";
}

TEST_F(StalledRoundTest, ByDefaultTheLastCallIsWhatEndsTheWait) {
  const auto team = RoundOf("", 4);
  PassWith({}, absl::Seconds(2));
  EXPECT_THAT(team[0]->answers, SizeIs(1));
  Rejoin(team[1]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(3));
}

TEST_F(StallTest, ANewcomerThatIsStoppedWhileItJoinsIsLost) {
  std::vector<Worker*> team;
  for (int slot = 0; slot < 3; ++slot) {
    team.push_back(MakeElastic(2, 3, slot));
    team.back()->request.manifest.terms["stall_timeout"] = "1s";
    Join(team.back());
  }
  Attach(team[0]);
  Attach(team[2]);
  membership_->Tick();
  PassWith({team[0], team[2]}, absl::Seconds(1));
  ExpectAborted(*team[0], "rank 1 (host-a/1");
  Rejoin(team[0]);
  Rejoin(team[2]);
  ASSERT_THAT(team[0]->answers, SizeIs(2));
  EXPECT_THAT(*team[0]->joined().members, SizeIs(2));
}

}  // namespace
}  // namespace coxswain::server
