// What the referee of the membership holds against a coordinator that is too
// quick: with the eviction of survivors, and with regroups.

#include "tests/simulation/membership_referee.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/membership/member_table.h"
#include "server/membership/membership_errors.h"
#include "tests/simulation/dice.h"

namespace coxswain::simulation {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kStall = absl::Seconds(1);
constexpr absl::Duration kTick = absl::Milliseconds(250);

// A job of 2 to 4 workers, each of which is named by its slot.
class MembershipRefereeTest : public ::testing::Test {
 protected:
  MembershipRefereeTest() {
    history_.min = 2;
    history_.max = 4;
    history_.stall_timeout = kStall;
    history_.options.last_call = absl::Seconds(5);
    history_.options.survivor_timeout = absl::Seconds(60);
  }

  static server::Member MemberOf(int slot) {
    server::Member member;
    member.identity = {"host-a", slot};
    member.incarnation = Incarnation(static_cast<uint64_t>(slot) + 1);
    return member;
  }
  void Join(int slot) {
    server::JoinRequest request;
    request.identity = MemberOf(slot).identity;
    request.incarnation = MemberOf(slot).incarnation;
    referee_.OnJoin(++join_ids_, request, /*committing=*/false);
    joined_.push_back(join_ids_);
  }
  void ShowsLife(int slot) {
    referee_.OnSign(MemberOf(slot).incarnation, timeline_.now());
  }
  // Time passes, and the coordinator looks as often as it should.
  void Pass(absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= kTick) StandStill(kTick);
  }
  // Or it looks once, at the end.
  void StandStill(absl::Duration time) {
    timeline_.In(time, [] {});
    timeline_.Step();
    referee_.OnLooked();
  }
  void Commit(const std::vector<int>& slots) {
    std::vector<server::MemberRecord> records;
    for (const int slot : slots) {
      server::MemberRecord& record = records.emplace_back();
      record.member = MemberOf(slot);
      record.member.rank = static_cast<int>(records.size()) - 1;
    }
    server::RunCommit commit;
    commit.run.previous = generation_;
    generation_ = Generation(generation_.value() + 1);
    commit.run.generation = generation_;
    commit.run.members = server::MemberTable(std::move(records));
    referee_.OnCommit(commit);
  }
  void BeginGeneration(const std::vector<int>& slots) {
    Pass(kTick);  // of the first look no silence is known
    for (const int slot : slots) Join(slot);
    Commit(slots);
    server::GenerationBegin begin;
    begin.generation = generation_;
    begin.world_size = static_cast<int>(slots.size());
    referee_.OnBegan(begin);
    for (const uint64_t join_id : joined_) {
      referee_.OnAnswered(join_id, absl::UnavailableError("its answer"));
    }
  }
  // Four train, one of them is killed.
  void EndGeneration() {
    BeginGeneration({0, 1, 2, 3});
    Pass(2 * kStall);
    referee_.OnExit(MemberOf(3).incarnation);
    referee_.OnAbortAsked();
    referee_.OnEnded(generation_, absl::AbortedError("slot 3 was killed"));
    EXPECT_THAT(referee_.violation(), IsEmpty());
  }
  // Those that live report how long they have waited; as long as it takes until
  // the other one counts as silent.
  void Report(const std::map<int, absl::Duration>& waiting) {
    for (absl::Duration passed; passed < kStall; passed += kTick) {
      Pass(kTick);
      for (const auto& [slot, time] : waiting) {
        referee_.OnHeartbeat(MemberOf(slot).incarnation, time);
      }
    }
  }
  void Lose(int slot) {
    server::Member lost = MemberOf(slot);
    lost.rank = slot;
    referee_.OnEnded(generation_,
                     server::GenerationEndedError("it is silent", lost));
  }
  void ExpectTooEarly(int slot) {
    EXPECT_THAT(referee_.violation(),
                HasSubstr(absl::StrCat("begins without rank ", slot)));
  }

  MembershipHistory history_;
  Timeline timeline_;
  Dice dice_{1, 1};
  MembershipStore store_{absl::Milliseconds(1), &timeline_, &dice_};
  MembershipReferee referee_{history_, &timeline_, &store_};
  Generation generation_;
  uint64_t join_ids_ = 0;
  std::vector<uint64_t> joined_;
};

TEST_F(MembershipRefereeTest, OneThatIsSilentWhileAllOthersWaitEndsIt) {
  BeginGeneration({0, 1, 2, 3});
  Report({{0, kStall / 2}, {1, kStall}, {2, kStall}});
  Lose(3);
  EXPECT_THAT(referee_.violation(), IsEmpty());
}

TEST_F(MembershipRefereeTest, SilenceIsNoReasonWhileAnotherOneComputes) {
  BeginGeneration({0, 1, 2, 3});
  Report({{0, kStall}, {1, kStall / 2 - kTick}, {2, kStall}});
  Lose(3);
  EXPECT_THAT(referee_.violation(), HasSubstr("lost without a reason"));
}

TEST_F(MembershipRefereeTest, NorIsItWhereNoneWaits) {
  BeginGeneration({0, 1, 2, 3});
  Report({});
  Lose(3);
  EXPECT_THAT(referee_.violation(), HasSubstr("lost without a reason"));
}

TEST_F(MembershipRefereeTest, NorIsItWhereTheCoordinatorStoodStill) {
  BeginGeneration({0, 1, 2, 3});
  StandStill(kStall);
  for (const int slot : {0, 1, 2}) {
    referee_.OnHeartbeat(MemberOf(slot).incarnation, kStall);
  }
  Lose(3);
  EXPECT_THAT(referee_.violation(), HasSubstr("lost without a reason"));
}

TEST_F(MembershipRefereeTest, OneThatIsSilentWhileAllOthersWaitMayBeLost) {
  EndGeneration();
  Join(0);
  Join(2);
  Pass(kStall);
  Commit({0, 2});
  EXPECT_THAT(referee_.violation(), IsEmpty());
}

TEST_F(MembershipRefereeTest, OneThatShowsThatItLivesMayNot) {
  EndGeneration();
  Join(0);
  Join(2);
  Pass(kStall - kTick);
  ShowsLife(1);
  Pass(kTick);
  Commit({0, 2});
  ExpectTooEarly(1);
}

TEST_F(MembershipRefereeTest, SilenceCountsFromTheEndOn) {
  EndGeneration();
  Join(0);
  Join(2);
  Pass(kStall - kTick);
  Commit({0, 2});
  ExpectTooEarly(1);
}

TEST_F(MembershipRefereeTest, AJoinIsASignOfLife) {
  EndGeneration();
  Join(0);
  Join(2);
  Pass(kStall / 2);
  Join(1);
  referee_.OnAnswered(join_ids_, absl::UnavailableError("refused"));
  Pass(kStall - kTick);
  Commit({0, 2});
  ExpectTooEarly(1);
}

TEST_F(MembershipRefereeTest, OthersAreToHaveWaitedForHalfOfTheTime) {
  EndGeneration();
  Join(0);
  Pass(kStall - kTick);
  Join(2);
  Pass(kTick);
  Commit({0, 2});
  ExpectTooEarly(1);
}

TEST_F(MembershipRefereeTest, WhatWasNotTakenMeanwhileIsNoSilence) {
  EndGeneration();
  Join(0);
  Join(2);
  StandStill(kStall);
  Commit({0, 2});
  ExpectTooEarly(1);
}

TEST_F(MembershipRefereeTest, NewcomersAloneLoseNoSurvivor) {
  EndGeneration();
  Join(4);
  Join(5);
  Pass(history_.options.survivor_timeout - kTick);
  Commit({4, 5});
  EXPECT_THAT(referee_.violation(), HasSubstr("begins without rank"));
}

TEST_F(MembershipRefereeTest, AGenerationThatRegroupsIsOldEnough) {
  history_.options.growth_min_age = 2 * kStall;
  BeginGeneration({0, 1});
  Pass(2 * kStall);
  referee_.OnRegroupWanted(generation_);
  EXPECT_THAT(referee_.violation(), IsEmpty());
}

TEST_F(MembershipRefereeTest, AGenerationThatIsTooYoungMayNotRegroup) {
  history_.options.growth_min_age = 2 * kStall;
  BeginGeneration({0, 1});
  Pass(2 * kStall - kTick);
  referee_.OnRegroupWanted(generation_);
  EXPECT_THAT(referee_.violation(), HasSubstr("is to regroup that is 1.75s"));
}

TEST_F(MembershipRefereeTest, OnlyOneThatWaitsMayCatchUp) {
  BeginGeneration({0, 1});
  Join(2);
  referee_.OnCatchUpWanted(generation_, MemberOf(2).incarnation);
  EXPECT_THAT(referee_.violation(), IsEmpty());
  referee_.OnCatchUpWanted(generation_, MemberOf(3).incarnation);
  EXPECT_THAT(referee_.violation(), HasSubstr("does not wait"));
}

TEST_F(MembershipRefereeTest, WithoutAStallTimeoutTheLastCallIsWaitedFor) {
  history_.stall_timeout = absl::InfiniteDuration();
  EndGeneration();
  Join(0);
  Join(2);
  Pass(history_.options.last_call - kTick);
  Commit({0, 2});
  ExpectTooEarly(1);
}

}  // namespace
}  // namespace coxswain::simulation
