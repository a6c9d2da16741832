#include "base/random.h"

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
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

uint64_t HashOfNormals(uint64_t draws) {
  const CounterRandom random(7, 11);
  uint64_t hash = 0;
  for (uint64_t i = 0; i < draws; ++i) {
    const double value = random.Normal(i);
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = Mix64(hash ^ bits);
  }
  return hash;
}

// Ranks draw by themselves what all must have alike: a difference in one bit
// between two processors would stay for ever. The same test in a process of its
// own, whose C library sees fewer instructions, prints what it draws.
TEST(NormalTest, DrawsHaveTheSameBitsWithWhateverInstructionsLibmFinds) {
  constexpr char kChild[] = "COXSWAIN_TEST_PRINTS_NORMALS";
  const std::string hash = absl::StrCat("hash=", HashOfNormals(100000), "\n");
  if (std::getenv(kChild) != nullptr) {
    std::fputs(hash.c_str(), stdout);
    return;
  }
  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
  const std::string command = absl::StrCat(
      kChild,
      "=1 GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX2_Usable,"
      "-FMA_Usable,-FMA4_Usable '",
      self, "' --gtest_filter='NormalTest.DrawsHaveTheSameBits*'");
  FILE* const child = popen(command.c_str(), "r");
  ASSERT_NE(child, nullptr);
  std::string output;
  char line[256];
  while (std::fgets(line, sizeof(line), child) != nullptr) output += line;
  EXPECT_EQ(pclose(child), 0) << output;
  EXPECT_NE(output.find(hash), std::string::npos) << output;
}

// Beside long double, whose logarithm and cosine have 11 bits more.
TEST(NormalTest, DrawsAreTheNearestNumbersButForARounding) {
  const CounterRandom random(3, 4);
  for (uint64_t i = 0; i < 200000; ++i) {
    const auto u = static_cast<long double>(1.0 - random.Uniform(2 * i));
    const double angle =
        6.283185307179586476925286766559 * random.Uniform(2 * i + 1);
    const auto logarithm = static_cast<double>(std::log(u));
    const auto cosine =
        static_cast<double>(std::cos(static_cast<long double>(angle)));
    const double expected = std::sqrt(-2.0 * logarithm) * cosine;
    EXPECT_NEAR(random.Normal(i), expected, std::fabs(expected) * 0x1p-51) << i;
  }
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
