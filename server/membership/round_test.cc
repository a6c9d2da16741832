#include "server/membership/round.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/membership/liveness.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

RoundState Present(int count) {
  RoundState state;
  state.present = count;
  state.last_arrival = kStart;
  state.first_deadline = kStart + absl::Seconds(30);
  return state;
}

TEST(DecideRoundTest, ClosesWhenAllHaveJoined) {
  const RoundVerdict verdict =
      DecideRound(kStart, Present(3), {3, 3, absl::Seconds(5)});
  EXPECT_EQ(verdict.decision, RoundDecision::kClose);
  EXPECT_EQ(verdict.reason, "all 3 workers have joined");
}

TEST(DecideRoundTest, OneWorkerIsNotCalledAll) {
  EXPECT_EQ(DecideRound(kStart, Present(1), {1, 1, absl::Seconds(5)}).reason,
            "the only worker has joined");
}

TEST(DecideRoundTest, FixedSizeWaitsForEverybody) {
  EXPECT_EQ(DecideRound(kStart + absl::Seconds(29), Present(2),
                        {3, 3, absl::Seconds(5)})
                .decision,
            RoundDecision::kWait);
}

TEST(DecideRoundTest, RangeClosesAfterTheLastCall) {
  const RoundOptions options = {2, 4, absl::Seconds(5)};
  EXPECT_EQ(
      DecideRound(kStart + absl::Seconds(4), Present(2), options).decision,
      RoundDecision::kWait);
  EXPECT_EQ(
      DecideRound(kStart + absl::Seconds(5), Present(2), options).decision,
      RoundDecision::kClose);
  EXPECT_EQ(
      DecideRound(kStart + absl::Seconds(5), Present(1), options).decision,
      RoundDecision::kWait);
}

TEST(DecideRoundTest, AMismatchIsReportedWhenAllAreThereOrTheTimeIsUp) {
  RoundOptions options;
  options.min = options.max = 3;
  options.mismatch_settle = absl::Seconds(2);
  RoundState two = Present(2);
  two.mismatch_since = kStart;
  EXPECT_EQ(DecideRound(kStart + absl::Seconds(1), two, options).decision,
            RoundDecision::kWait);
  const RoundVerdict verdict =
      DecideRound(kStart + absl::Seconds(2), two, options);
  EXPECT_EQ(verdict.decision, RoundDecision::kRefuse);
  EXPECT_EQ(verdict.reason, "2 of 3 workers had joined");
  two.first_deadline = kStart + absl::Seconds(1);
  EXPECT_EQ(DecideRound(kStart + absl::Seconds(1), two, options).decision,
            RoundDecision::kRefuse);
  RoundState three = Present(3);
  three.mismatch_since = kStart;
  EXPECT_EQ(DecideRound(kStart, three, options).decision,
            RoundDecision::kRefuse);
}

TEST(DecideRoundTest, ExpiryCountsTheMissing) {
  const RoundVerdict verdict = DecideRound(
      kStart + absl::Seconds(30), Present(2), {3, 3, absl::Seconds(5)});
  EXPECT_EQ(verdict.decision, RoundDecision::kExpire);
  EXPECT_EQ(verdict.reason, "2 of 3 workers have joined; 1 missing");
}

TEST(DecideRoundTest, CompleteRoundClosesEvenPastItsDeadline) {
  EXPECT_EQ(DecideRound(kStart + absl::Seconds(31), Present(3),
                        {3, 3, absl::Seconds(5)})
                .decision,
            RoundDecision::kClose);
}

// After a generation of an elastic job, of which `survivors` are not back yet.
class SurvivorsTest : public testing::Test {
 protected:
  RoundDecision After(absl::Duration time, int present, int back, int awaited) {
    RoundState state = Present(present);
    state.survivors_present = back;
    state.survivors_awaited = awaited;
    state.survivors_until = kStart + absl::Seconds(20);
    return DecideRound(kStart + time, state, options_).decision;
  }
  RoundOptions options_ = {2, 4, absl::Seconds(5)};
};

TEST_F(SurvivorsTest, ClosesAtOnceWhenAllAreBack) {
  EXPECT_EQ(After(absl::ZeroDuration(), 3, 3, 0), RoundDecision::kClose);
  EXPECT_EQ(After(absl::ZeroDuration(), 2, 2, 0), RoundDecision::kClose);
  // Too few: another one has to come, and the last of them counts.
  EXPECT_EQ(After(absl::Seconds(6), 1, 1, 0), RoundDecision::kWait);
}

TEST_F(SurvivorsTest, OthersDoNotTakeTheirPlace) {
  EXPECT_EQ(After(absl::Seconds(4), 4, 1, 2), RoundDecision::kWait);
  EXPECT_EQ(After(absl::Seconds(5), 4, 1, 2), RoundDecision::kClose);
  EXPECT_EQ(After(absl::Seconds(5), 2, 1, 2), RoundDecision::kClose);
}

TEST_F(SurvivorsTest, WithoutAnyTheTimeoutIsLonger) {
  EXPECT_EQ(After(absl::Seconds(19), 4, 0, 2), RoundDecision::kWait);
  EXPECT_EQ(After(absl::Seconds(20), 4, 0, 2), RoundDecision::kClose);
  EXPECT_EQ(After(absl::Seconds(20), 1, 0, 2), RoundDecision::kWait);
  EXPECT_EQ(After(absl::Seconds(30), 1, 0, 2), RoundDecision::kExpire);
}

TEST_F(SurvivorsTest, NewcomersAloneDoNotGoOnBeforeTheTimeout) {
  RoundState state = Present(4);
  state.survivors_awaited = 2;
  state.survivors_until = kStart + absl::Minutes(10);
  state.first_deadline = absl::InfiniteFuture();
  const auto at = [&](absl::Duration time) {
    return DecideRound(kStart + time, state, options_);
  };
  EXPECT_EQ(at(absl::Seconds(599)).decision, RoundDecision::kWait);
  EXPECT_THAT(at(absl::Seconds(599)).reason,
              HasSubstr("2 of the last generation, who have the state"));
  EXPECT_EQ(at(absl::Seconds(600)).decision, RoundDecision::kClose);
  // Nor do they give up before.
  state.first_deadline = kStart + absl::Minutes(5);
  EXPECT_EQ(at(absl::Minutes(5)).decision, RoundDecision::kWait);
  EXPECT_EQ(at(absl::Minutes(10)).decision, RoundDecision::kClose);
  state.present = 1;
  EXPECT_EQ(at(absl::Seconds(599)).decision, RoundDecision::kWait);
  EXPECT_EQ(at(absl::Minutes(10)).decision, RoundDecision::kExpire);
  // Too few, and one of them has it: the others are as late as any.
  state.survivors_present = 1;
  EXPECT_EQ(at(absl::Minutes(5)).decision, RoundDecision::kExpire);
  state.survivors_present = 0;
  state.present = 4;
  // Known to be gone, they are not awaited.
  state.survivors_awaited = 0;
  EXPECT_EQ(at(absl::Seconds(0)).decision, RoundDecision::kClose);
}

TEST_F(SurvivorsTest, MissingSurvivorsAreNamed) {
  RoundState state = Present(4);
  state.survivors_awaited = 1;
  state.survivors_until = kStart + absl::Minutes(10);
  std::map<int, WorkerIdentity> awaited = {{0, {"host-a", 0}}};
  const auto described = [&] {
    return DescribeRound(kStart, state, options_, awaited);
  };
  EXPECT_EQ(described(),
            "waiting for rank 0 (host-a/0) of the last generation, which has "
            "the state");
  awaited[2] = {"host-a", 2};
  state.survivors_awaited = 2;
  EXPECT_THAT(described(), HasSubstr("rank 0 (host-a/0) and 1 more of"));
  state.survivors_until = kStart;
  EXPECT_EQ(described(), "all 4 workers have joined");
}

TEST_F(SurvivorsTest, AJobOfFixedSizeTakesAnyWorkerThatCompletesIt) {
  options_.min = 4;
  EXPECT_EQ(After(absl::ZeroDuration(), 4, 0, 2), RoundDecision::kClose);
  EXPECT_EQ(After(absl::Seconds(25), 3, 3, 0), RoundDecision::kWait);
}

class DecideGrowthTest : public testing::Test {
 protected:
  DecideGrowthTest() {
    state_.world_size = 2;
    state_.spares = 1;
    state_.began = kStart;
    state_.last_arrival = kStart + absl::Seconds(60);
    options_.max = 4;
    options_.settle = absl::Seconds(1);
    options_.catch_up_age = absl::Seconds(15);
    options_.min_age = absl::Seconds(20);
  }
  GrowthDecision At(absl::Duration time) {
    return DecideGrowth(kStart + time, state_, options_);
  }
  GrowthState state_;
  GrowthOptions options_;
};

TEST_F(DecideGrowthTest, OnceNoMoreSparesCome) {
  EXPECT_EQ(At(absl::Milliseconds(60'900)), GrowthDecision::kWait);
  EXPECT_EQ(At(absl::Seconds(61)), GrowthDecision::kRegroup);
  state_.spares = 0;
  EXPECT_EQ(At(absl::Seconds(61)), GrowthDecision::kWait);
}

TEST_F(DecideGrowthTest, AtOnceWhenTheWorldIsFull) {
  state_.spares = 2;
  EXPECT_EQ(At(absl::Seconds(60)), GrowthDecision::kRegroup);
  state_.world_size = 4;
  EXPECT_EQ(At(absl::Seconds(70)), GrowthDecision::kWait);
}

TEST_F(DecideGrowthTest, NotWhileTheGenerationIsYoungOrEndsAnyway) {
  state_.last_arrival = kStart;
  EXPECT_EQ(At(absl::Seconds(14)), GrowthDecision::kWait);
  EXPECT_EQ(At(absl::Seconds(15)), GrowthDecision::kCatchUp);
  EXPECT_EQ(At(absl::Seconds(19)), GrowthDecision::kCatchUp);
  EXPECT_EQ(At(absl::Seconds(20)), GrowthDecision::kRegroup);
  state_.members_left = true;
  EXPECT_EQ(At(absl::Seconds(17)), GrowthDecision::kWait);
  EXPECT_EQ(At(absl::Seconds(70)), GrowthDecision::kWait);
}

TEST_F(DecideGrowthTest, CatchingUpWaitsForFurtherSparesToo) {
  state_.last_arrival = kStart + absl::Seconds(16);
  EXPECT_EQ(At(absl::Milliseconds(16'900)), GrowthDecision::kWait);
  EXPECT_EQ(At(absl::Seconds(17)), GrowthDecision::kCatchUp);
}

TEST(HoldsUpTest, OnlyOnceAMemberHasLeftForTheNextGeneration) {
  const absl::Duration grace = absl::Seconds(30);
  EXPECT_FALSE(HoldsUp(kStart + absl::Hours(1), std::nullopt, grace));
  EXPECT_FALSE(HoldsUp(kStart + absl::Seconds(29), kStart, grace));
  EXPECT_TRUE(HoldsUp(kStart + absl::Seconds(30), kStart, grace));
}

TEST(NameWorkersTest, LongListsAreCut) {
  EXPECT_EQ(NameWorkers({}), "no worker");
  std::vector<WorkerIdentity> workers;
  for (int slot = 0; slot < 20; ++slot) workers.push_back({"host-a", slot});
  EXPECT_THAT(NameWorkers(workers), HasSubstr("host-a/15 and 4 more"));
}

class DecideLivenessTest : public testing::Test {
 protected:
  LivenessVerdict After(absl::Duration time, MemberState state) {
    return DecideLiveness(kStart + time, {state, kStart, kStart}, options_);
  }
  const LivenessOptions options_ = {absl::Seconds(10), absl::Seconds(3)};
};

TEST_F(DecideLivenessTest, SilenceIsBoundedByTheLease) {
  EXPECT_FALSE(After(absl::Seconds(9), MemberState::kAttached).lost);
  const auto verdict = After(absl::Seconds(10), MemberState::kAttached);
  EXPECT_TRUE(verdict.lost);
  EXPECT_EQ(verdict.reason, "no sign of life for 10s");
}

TEST_F(DecideLivenessTest, LostConnectionHasItsGrace) {
  EXPECT_FALSE(After(absl::Seconds(2), MemberState::kDetached).lost);
  const auto verdict = After(absl::Seconds(3), MemberState::kDetached);
  EXPECT_TRUE(verdict.lost);
  EXPECT_THAT(verdict.reason, HasSubstr("within 3s"));
}

TEST_F(DecideLivenessTest, LessGraceWhereItsPeersCannotReachItEither) {
  LivenessOptions options = options_;
  options.broken_peer_grace = absl::Seconds(1);
  LivenessState state;
  state.state = MemberState::kDetached;
  state.last_sign = state.detached_at = kStart;
  const auto lost = [&](absl::Duration time) {
    return DecideLiveness(kStart + time, state, options).lost;
  };
  state.attached_this_term = true;
  EXPECT_FALSE(lost(absl::Milliseconds(2900)));
  // Before or after its own connection broke.
  state.broken_at = kStart - absl::Seconds(1);
  EXPECT_FALSE(lost(absl::Milliseconds(900)));
  EXPECT_TRUE(lost(absl::Seconds(1)));
  EXPECT_THAT(DecideLiveness(kStart + absl::Seconds(1), state, options).reason,
              HasSubstr("and to its peers broke"));
  state.broken_at = kStart + absl::Milliseconds(1900);
  EXPECT_TRUE(lost(absl::Seconds(2)));
  // Too long ago to have to do with it.
  state.broken_at = kStart - absl::Milliseconds(1100);
  EXPECT_FALSE(lost(absl::Milliseconds(2900)));
  // It was another coordinator that lost the connection.
  state.broken_at = kStart;
  state.attached_this_term = false;
  EXPECT_FALSE(lost(absl::Milliseconds(2900)));
  state.attached_this_term = true;
  EXPECT_TRUE(lost(absl::Milliseconds(2900)));
  // After a pause nothing of before counts.
  EXPECT_EQ(WithTimeoutsRestarted(kStart, state).broken_at,
            absl::InfinitePast());
  // A peer alone proves nothing.
  state.broken_at = kStart;
  state.state = MemberState::kAttached;
  EXPECT_FALSE(lost(absl::Seconds(9)));
}

TEST_F(DecideLivenessTest, AMemberThatNeverAttachesIsLost) {
  EXPECT_FALSE(After(absl::Seconds(9), MemberState::kJoined).lost);
  EXPECT_THAT(After(absl::Seconds(10), MemberState::kJoined).reason,
              HasSubstr("did not attach"));
}

TEST_F(DecideLivenessTest, AMemberThatLeftIsNotLost) {
  EXPECT_FALSE(After(absl::Hours(1), MemberState::kLeft).lost);
  EXPECT_FALSE(After(absl::Hours(1), MemberState::kLost).lost);
}

TEST(WasPausedTest, MoreThanHalfALeaseBetweenTwoLooks) {
  const absl::Duration lease = absl::Seconds(10);
  EXPECT_FALSE(WasPaused(kStart + absl::Seconds(5), kStart, lease));
  EXPECT_TRUE(WasPaused(kStart + absl::Seconds(6), kStart, lease));
  EXPECT_FALSE(WasPaused(kStart, kStart + absl::Seconds(6), lease));
}

TEST(WasPausedTest, TheTimeoutIsOneLeaseFromNow) {
  const LivenessOptions options = {absl::Seconds(10), absl::Seconds(10)};
  for (const MemberState member :
       {MemberState::kJoined, MemberState::kAttached, MemberState::kDetached}) {
    LivenessState state;
    state.state = member;
    state.last_sign = state.detached_at = kStart;
    const absl::Time now = kStart + absl::Hours(1);
    EXPECT_TRUE(DecideLiveness(now, state, options).lost);
    state = WithTimeoutsRestarted(now, state);
    EXPECT_FALSE(DecideLiveness(now + absl::Seconds(9), state, options).lost);
    EXPECT_TRUE(DecideLiveness(now + absl::Seconds(10), state, options).lost);
  }
}

}  // namespace
}  // namespace coxswain::server
