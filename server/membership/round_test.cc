#include "server/membership/round.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/membership/liveness.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

RoundState Present(int count) {
  RoundState state;
  for (int slot = 0; slot < count; ++slot) {
    state.present.push_back({"host-a", slot});
  }
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

TEST(DecideRoundTest, AMismatchIsToldWhenAllAreThereOrTheTimeIsUp) {
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

TEST(DecideRoundTest, ExpiryNamesWhoIsPresentAndCountsTheMissing) {
  const RoundVerdict verdict = DecideRound(
      kStart + absl::Seconds(30), Present(2), {3, 3, absl::Seconds(5)});
  EXPECT_EQ(verdict.decision, RoundDecision::kExpire);
  EXPECT_EQ(verdict.reason,
            "2 of 3 workers have joined: host-a/0, host-a/1; 1 missing");
}

TEST(DecideRoundTest, CompleteRoundClosesEvenPastItsDeadline) {
  EXPECT_EQ(DecideRound(kStart + absl::Seconds(31), Present(3),
                        {3, 3, absl::Seconds(5)})
                .decision,
            RoundDecision::kClose);
}

TEST(NameWorkersTest, LongListsAreCut) {
  EXPECT_EQ(NameWorkers({}), "nobody");
  EXPECT_THAT(NameWorkers(Present(20).present),
              HasSubstr("host-a/15 and 4 more"));
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

TEST_F(DecideLivenessTest, WhoNeverAttachesIsLost) {
  EXPECT_FALSE(After(absl::Seconds(9), MemberState::kJoined).lost);
  EXPECT_THAT(After(absl::Seconds(10), MemberState::kJoined).reason,
              HasSubstr("did not attach"));
}

TEST_F(DecideLivenessTest, WhoLeftIsNotLost) {
  EXPECT_FALSE(After(absl::Hours(1), MemberState::kLeft).lost);
  EXPECT_FALSE(After(absl::Hours(1), MemberState::kLost).lost);
}

TEST(StoodStillTest, MoreThanHalfALeaseBetweenTwoLooks) {
  const absl::Duration lease = absl::Seconds(10);
  EXPECT_FALSE(StoodStill(kStart + absl::Seconds(5), kStart, lease));
  EXPECT_TRUE(StoodStill(kStart + absl::Seconds(6), kStart, lease));
  EXPECT_FALSE(StoodStill(kStart, kStart + absl::Seconds(6), lease));
}

TEST(StoodStillTest, PatienceIsOneLeaseFromNow) {
  const LivenessOptions options = {absl::Seconds(10), absl::Seconds(10)};
  for (const MemberState member :
       {MemberState::kJoined, MemberState::kAttached, MemberState::kDetached}) {
    LivenessState state;
    state.state = member;
    state.last_sign = state.detached_at = kStart;
    const absl::Time now = kStart + absl::Hours(1);
    EXPECT_TRUE(DecideLiveness(now, state, options).lost);
    state = WithPatience(now, state);
    EXPECT_FALSE(DecideLiveness(now + absl::Seconds(9), state, options).lost);
    EXPECT_TRUE(DecideLiveness(now + absl::Seconds(10), state, options).lost);
  }
}

}  // namespace
}  // namespace coxswain::server
