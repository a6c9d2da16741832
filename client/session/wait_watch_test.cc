#include "client/session/wait_watch.h"

#include "gtest/gtest.h"

namespace coxswain {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(250);

class WaitWatchTest : public testing::Test {
 protected:
  absl::Duration Look(bool waits, int64_t collectives, int64_t bytes = 0) {
    now_ += kLook;
    WorkDone done;
    done.collectives = collectives;
    done.wire_bytes = bytes;
    return watch_.Look(now_, waits, done);
  }

  absl::Time now_ = absl::UnixEpoch();
  WaitWatch watch_;
};

TEST_F(WaitWatchTest, AWaitCountsFromTheLookThatFoundIt) {
  EXPECT_EQ(Look(false, 1), absl::ZeroDuration());
  EXPECT_EQ(Look(true, 2), absl::ZeroDuration());
  EXPECT_EQ(Look(true, 2), kLook);
  EXPECT_EQ(Look(true, 2), 2 * kLook);
}

TEST_F(WaitWatchTest, WhatMovesIsNoWait) {
  EXPECT_EQ(Look(true, 2, 100), absl::ZeroDuration());
  EXPECT_EQ(Look(true, 2, 200), absl::ZeroDuration()) << "bytes come through";
  EXPECT_EQ(Look(true, 3, 200), absl::ZeroDuration()) << "it ended between";
  EXPECT_EQ(Look(true, 3, 200), kLook);
}

TEST_F(WaitWatchTest, WaitsThatEndAreNoLongOne) {
  WorkDone done;
  now_ += kLook;
  EXPECT_EQ(watch_.Look(now_, true, done), absl::ZeroDuration());
  now_ += kLook;
  ++done.waits;
  EXPECT_EQ(watch_.Look(now_, true, done), absl::ZeroDuration())
      << "it waits for something else now";
  now_ += kLook;
  EXPECT_EQ(watch_.Look(now_, true, done), kLook);
}

TEST_F(WaitWatchTest, WorkWithoutAWaitIsNone) {
  Look(true, 2);
  EXPECT_EQ(Look(false, 2), absl::ZeroDuration()) << "it computes";
  EXPECT_EQ(Look(false, 2), absl::ZeroDuration());
  EXPECT_EQ(Look(true, 2), absl::ZeroDuration());
  EXPECT_EQ(Look(true, 2), kLook);
}

}  // namespace
}  // namespace coxswain
