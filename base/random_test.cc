#include "base/random.h"

#include <cmath>

#include "base/backoff.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

// Pinned: saved compression state depends on these draws.
TEST(RandomTest, StreamsAreStableAcrossVersions) {
  EXPECT_EQ(Mix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(StableHash("coxswain"), StableHash("coxswain"));
  EXPECT_NE(StableHash("a"), StableHash("b"));
}

TEST(RandomTest, NormalDrawsHaveUnitVarianceAndNoMean) {
  const CounterRandom random(1, 2);
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.Normal(i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.02);
}

TEST(RandomTest, StreamsOfDifferentKeysDiffer) {
  EXPECT_NE(CounterRandom(1, 2).Bits(0), CounterRandom(1, 3).Bits(0));
  EXPECT_NE(CounterRandom(1, 2).Bits(0), CounterRandom(2, 2).Bits(0));
  EXPECT_NE(CounterRandom(1, 2).Bits(0), CounterRandom(1, 2).Bits(1));
}

TEST(BackoffTest, GrowsToTheCapAndResets) {
  Backoff backoff(absl::Milliseconds(10), absl::Milliseconds(40),
                  RandomSource::System());
  EXPECT_EQ(backoff.Next(), absl::Milliseconds(10));
  for (int i = 0; i < 20; ++i) {
    const absl::Duration delay = backoff.Next();
    EXPECT_GE(delay, absl::Milliseconds(10));
    EXPECT_LE(delay, absl::Milliseconds(40));
  }
  backoff.Reset();
  EXPECT_EQ(backoff.Next(), absl::Milliseconds(10));
}

}  // namespace
}  // namespace coxswain
