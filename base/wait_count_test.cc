#include "base/wait_count.h"

#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(WaitCountTest, CountsThoseThatWait) {
  WaitCount count;
  EXPECT_FALSE(count.any());
  {
    const WaitCount::Scope outer(&count);
    { const WaitCount::Scope inner(&count); }
    EXPECT_TRUE(count.any());
    EXPECT_EQ(count.ended(), 1);
  }
  EXPECT_FALSE(count.any());
  EXPECT_EQ(count.ended(), 2);
}

TEST(WaitCountTest, AWaitThatIsTakenUpAgainHasNotEnded) {
  WaitCount count;
  {
    WaitCount::Scope wait(&count);
    wait.GoesOn();
  }
  EXPECT_FALSE(count.any());
  EXPECT_EQ(count.ended(), 0);
}

TEST(WaitCountTest, WaitsInTheBackgroundDoNotCount) {
  WaitCount count;
  {
    const WaitCount::Background background;
    const WaitCount::Scope wait(&count);
    EXPECT_FALSE(count.any());
  }
  EXPECT_EQ(count.ended(), 0);
  const WaitCount::Scope wait(&count);
  EXPECT_TRUE(count.any());
}

}  // namespace
}  // namespace coxswain
