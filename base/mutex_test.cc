#include "base/mutex.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(CondVarTest, ATimeThatIsOverIsNotWaitedFor) {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(&mutex);
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), -absl::Seconds(1), -absl::InfiniteDuration()}) {
    EXPECT_FALSE(changed.WaitFor(&mutex, timeout, [] { return false; }));
    EXPECT_TRUE(changed.WaitFor(&mutex, timeout, [] { return true; }));
  }
}

TEST(CondVarTest, WhatIsSoEndsAWaitWithoutEnd) {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(&mutex);
  EXPECT_TRUE(
      changed.WaitFor(&mutex, absl::InfiniteDuration(), [] { return true; }));
}

}  // namespace
}  // namespace coxswain
