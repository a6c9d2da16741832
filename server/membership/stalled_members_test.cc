#include "server/membership/stalled_members.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr absl::Duration kTimeout = absl::Seconds(2);
constexpr absl::Duration kBeat = absl::Milliseconds(500);

// Rank 2 of three is silent, and the two others wait for it.
class StalledMembersTest : public testing::Test {
 protected:
  StalledMembersTest() {
    for (MemberSigns& member : members_) {
      member.last_sign = member.reported = now_ - kBeat;
      member.interval = kBeat;
      member.waiting = absl::Milliseconds(1500);
    }
    members_[2].last_sign = members_[2].reported = now_ - kTimeout;
    members_[2].waiting = absl::ZeroDuration();
  }

  std::vector<int> Find() const {
    return FindStalled(now_, members_, kTimeout, looked_since_);
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  absl::Time looked_since_ = absl::InfinitePast();
  std::vector<MemberSigns> members_{3};
};

TEST_F(StalledMembersTest, TheSilentOneThatAllWaitForIsStalled) {
  EXPECT_THAT(Find(), ElementsAre(2));
}

TEST_F(StalledMembersTest, ItHasTheWholeTimeout) {
  members_[2].last_sign += absl::Milliseconds(1);
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(StalledMembersTest, SilenceThatHoldsUpNobodyIsNoStall) {
  members_[0].waiting = absl::ZeroDuration();
  EXPECT_THAT(Find(), IsEmpty()) << "rank 0 computes";
  members_[0].waiting = kTimeout / 2;
  EXPECT_THAT(Find(), ElementsAre(2));
}

TEST_F(StalledMembersTest, WaitsForAMemberThatIsHeardOfAreNoStall) {
  members_[2].last_sign = now_;
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(StalledMembersTest, AnOldReportOfAWaitDoesNotCount) {
  members_[1].reported = now_ - 2 * kBeat - absl::Milliseconds(1);
  EXPECT_THAT(Find(), IsEmpty()) << "it may have moved since";
}

TEST_F(StalledMembersTest, SeveralMayBeSilent) {
  members_[0].last_sign = now_ - kTimeout;
  EXPECT_THAT(Find(), ElementsAre(0, 2));
}

TEST_F(StalledMembersTest, WhereAllAreSilentTheCoordinatorIsCutOff) {
  for (MemberSigns& member : members_) member.last_sign = now_ - kTimeout;
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(StalledMembersTest, ThoseWhoHaveLeftDoNotCount) {
  members_[0].live = false;
  members_[0].waiting = absl::ZeroDuration();
  EXPECT_THAT(Find(), ElementsAre(2));
  members_[2].live = false;
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(StalledMembersTest, OneInTheJoinRoundWaitsAndIsNotSilent) {
  members_[0].rejoined = true;
  members_[0].reported = absl::InfinitePast();
  members_[0].last_sign = now_ - 2 * kTimeout;
  EXPECT_THAT(Find(), ElementsAre(2));
  members_[0].last_sign = now_ - kTimeout / 2 + absl::Milliseconds(1);
  EXPECT_THAT(Find(), IsEmpty()) << "it has only begun to wait";
}

TEST_F(StalledMembersTest, OneThatIsYetToComeBackIsWaitedFor) {
  members_[2].expected = false;
  EXPECT_THAT(Find(), IsEmpty());
  members_[2].expected = true;
  members_[0].expected = false;
  EXPECT_THAT(Find(), IsEmpty()) << "whether it waits is not known";
}

TEST_F(StalledMembersTest, SilenceCountsWhileItWasLookedFor) {
  looked_since_ = now_ - kTimeout + absl::Milliseconds(1);
  EXPECT_THAT(Find(), IsEmpty());
  looked_since_ = now_ - kTimeout;
  EXPECT_THAT(Find(), ElementsAre(2));
}

TEST_F(StalledMembersTest, RareHeartbeatsHaveMoreTime) {
  members_[2].interval = absl::Seconds(2);
  EXPECT_THAT(Find(), IsEmpty());
  members_[2].last_sign = now_ - absl::Seconds(8);
  EXPECT_THAT(Find(), ElementsAre(2));
}

TEST_F(StalledMembersTest, ASurvivorOfManyHasMoreTime) {
  members_[0].rejoined = members_[1].rejoined = true;
  members_[0].last_sign = members_[1].last_sign = now_ - absl::Minutes(1);
  members_[2].sign_interval = absl::Seconds(2);
  EXPECT_THAT(Find(), IsEmpty());
  members_[2].last_sign = now_ - absl::Seconds(8);
  EXPECT_THAT(Find(), ElementsAre(2));
}

TEST(HeartbeatIntervalTest, SeveralFitIntoAStallTimeout) {
  const absl::Duration usual = absl::Seconds(2);
  EXPECT_EQ(HeartbeatInterval(usual, absl::InfiniteDuration()), usual);
  EXPECT_EQ(HeartbeatInterval(usual, absl::Seconds(20)), usual);
  EXPECT_EQ(HeartbeatInterval(usual, absl::Seconds(1)),
            absl::Milliseconds(250));
}

}  // namespace
}  // namespace coxswain::server
