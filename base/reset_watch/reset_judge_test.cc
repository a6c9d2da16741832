#include "base/reset_watch/reset_judge.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using grpc_counts::Connection;
using testing::ElementsAre;
using testing::IsEmpty;

// A server whose connections are told what they do, and time.
class ResetJudgeTest : public testing::Test {
 protected:
  ResetJudgeTest() {
    ResetJudge::Limits limits;
    limits.streams = 100;
    limits.held = 1000;
    judge_ = std::make_unique<ResetJudge>(limits);
  }

  // Of `begun` calls of a connection so many are answered, so many are broken,
  // and of the rest so many are under way; others are over and held.
  void Calls(size_t i, int64_t begun, int64_t answered, int64_t broken,
             int64_t under_way) {
    while (connections_.size() <= i) {
      connections_.emplace_back();
      connections_.back().id = static_cast<int64_t>(connections_.size());
    }
    connections_[i].begun += begun;
    connections_[i].answered += answered;
    connections_[i].broken += broken;
    server_.begun += begun;
    server_.ended += begun - under_way;
  }

  std::vector<size_t> JudgeAfter(absl::Duration time) {
    now_ += time;
    return judge_->Judge(server_, connections_, now_);
  }

  std::unique_ptr<ResetJudge> judge_;
  grpc_counts::Server server_;
  std::vector<Connection> connections_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(ResetJudgeTest, WhoIsAnsweredMayCallAsFastAsItCan) {
  for (int i = 0; i < 50; ++i) {
    Calls(0, 100'000, 100'000, 0, 0);
    EXPECT_THAT(JudgeAfter(absl::Milliseconds(100)), IsEmpty());
  }
}

TEST_F(ResetJudgeTest, AllCallsUnderWayMayBeGivenUpAndBegunAgain) {
  Calls(0, 100, 0, 0, 100);
  EXPECT_THAT(JudgeAfter(absl::Seconds(1)), IsEmpty());
  Calls(0, 0, 0, 100, -100);
  Calls(0, 100, 0, 0, 100);
  EXPECT_THAT(JudgeAfter(absl::Milliseconds(1)), IsEmpty());
}

TEST_F(ResetJudgeTest, AsManyAsAreUnderWayMayBreakInEachSecond) {
  for (int i = 0; i < 50; ++i) {
    Calls(0, 99, 0, 99, 0);
    EXPECT_THAT(JudgeAfter(absl::Seconds(1)), IsEmpty());
  }
}

TEST_F(ResetJudgeTest, NotMore) {
  Calls(0, 10, 10, 0, 0);
  Calls(1, 60, 0, 60, 0);
  EXPECT_THAT(JudgeAfter(absl::Milliseconds(100)), IsEmpty());
  int looks = 0;
  while (JudgeAfter(absl::Milliseconds(100)).empty()) {
    Calls(0, 10, 10, 0, 0);
    Calls(1, 60, 0, 60, 0);
    ASSERT_LT(++looks, 6);
  }
  Calls(1, 60, 0, 60, 0);
  EXPECT_THAT(JudgeAfter(absl::Milliseconds(100)), ElementsAre(1));
}

// They may have been broken over days.
TEST_F(ResetJudgeTest, WhatWasBrokenBeforeTheFirstLookDoesNotCount) {
  Calls(0, 100'000, 0, 100'000, 0);
  EXPECT_THAT(JudgeAfter(absl::Seconds(1)), IsEmpty());
}

TEST_F(ResetJudgeTest, WhatWasBrokenInAnHourBetweenLooksDoesNotCount) {
  Calls(0, 1, 0, 1, 0);
  EXPECT_THAT(JudgeAfter(absl::Seconds(1)), IsEmpty());
  Calls(0, 100'000, 0, 100'000, 0);
  EXPECT_THAT(JudgeAfter(absl::Hours(1)), IsEmpty());
}

TEST_F(ResetJudgeTest, WhatIsHeldAtTheFirstLookDoes) {
  Calls(0, 201, 0, 0, 0);
  EXPECT_THAT(JudgeAfter(absl::Seconds(1)), ElementsAre(0));
}

// None of them by itself breaks more than a connection may.
TEST_F(ResetJudgeTest, WhereTooMuchIsHeldAllThatHoldItAreEnded) {
  for (size_t i = 0; i < 15; ++i) Calls(i, 60, 0, 0, 0);
  Calls(15, 30, 0, 0, 0);
  Calls(16, 1000, 950, 0, 10);
  EXPECT_THAT(JudgeAfter(absl::Seconds(1)), IsEmpty());
  for (size_t i = 0; i < 5; ++i) Calls(i, 60, 0, 0, 0);
  Calls(15, 2, 2, 0, 0);
  Calls(16, 100, 50, 0, 0);
  // 1,320 are held, of which 10 are under way, and 1,000 more may be.
  EXPECT_THAT(JudgeAfter(absl::Milliseconds(100)),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14));
}

TEST_F(ResetJudgeTest, WhatIsUnderWayIsHeldRightly) {
  for (size_t i = 0; i < 100; ++i) Calls(i, 90, 0, 0, 90);
  EXPECT_THAT(JudgeAfter(absl::Seconds(1)), IsEmpty());
}

TEST_F(ResetJudgeTest, ThoseThatBeginLittleStayWhateverIsHeld) {
  for (size_t i = 0; i < 100; ++i) Calls(i, 30, 0, 0, 0);
  EXPECT_THAT(JudgeAfter(absl::Seconds(1)), IsEmpty());
}

}  // namespace
}  // namespace coxswain
