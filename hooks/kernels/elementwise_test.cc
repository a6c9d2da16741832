#include "hooks/kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "hooks/kernels/every_target.h"

namespace coxswain {
namespace {

// Every upper half of a float with lower halves around the ties of both
// formats.
std::vector<float> EveryUpperHalf() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0u, 0x1u, 0xfffu, 0x1000u, 0x1001u, 0x3000u,
                                 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(FloatFromBits(upper << 16 | lower));
    }
  }
  return values;
}

std::vector<float> RandomBits(int64_t count) {
  const CounterRandom random(1, 2);
  std::vector<float> values;
  for (int64_t i = 0; i < count; i += 2) {
    const uint64_t bits = random.Bits(static_cast<uint64_t>(i));
    values.push_back(FloatFromBits(static_cast<uint32_t>(bits)));
    values.push_back(FloatFromBits(static_cast<uint32_t>(bits >> 32)));
  }
  return values;
}

struct Narrowed {
  std::vector<uint16_t> float16, bfloat16;
};

Narrowed Expected(const std::vector<float>& in, float divisor) {
  const float scale = 1 / divisor;
  Narrowed out;
  for (const float value : in) {
    out.float16.push_back(FloatToFloat16(value * scale));
    out.bfloat16.push_back(FloatToBFloat16(value * scale));
  }
  return out;
}

void ExpectNarrowed(const std::vector<float>& in, float divisor,
                    int64_t offset) {
  const auto expected = Expected(in, divisor);
  const auto count = static_cast<int64_t>(in.size());
  Guarded<float> from(count, offset, 7);
  from.Fill(in);
  ForEveryTarget([&] {
    Guarded<uint16_t> out(count, offset, 0x5555);
    ScaleToFloat16(from.data(), out.data(), count, 1 / divisor);
    ASSERT_TRUE(SameBits(out.Values(), expected.float16));
    ScaleToBFloat16(from.data(), out.data(), count, 1 / divisor);
    ASSERT_TRUE(SameBits(out.Values(), expected.bfloat16));
    ASSERT_TRUE(out.IsIntact());
  });
}

TEST(ElementwiseTest, NarrowsEveryKindOfFloatExactly) {
  ExpectNarrowed(EveryUpperHalf(), 1, 0);
}

TEST(ElementwiseTest, NarrowsRandomFloatsExactly) {
  ExpectNarrowed(RandomBits(int64_t{1} << 22), 4, 1);
}

TEST(ElementwiseTest, NarrowsTheScaledValueAtAnySizeAndAlignment) {
  const auto values = RandomBits(600);
  for (const int64_t count : {0, 1, 7, 15, 16, 31, 63, 64, 65, 255}) {
    for (const int64_t offset : {0, 1, 3, 17}) {
      ExpectNarrowed({values.begin(), values.begin() + count}, 3, offset);
    }
  }
}

// The nearest of the neighbours of `guess`, ties to the even one. `infinity`
// is where the format's next number would be.
template <class WidenOne>
uint16_t Nearest(double value, uint16_t guess, WidenOne widen,
                 double infinity) {
  const auto distance = [&](int bits) {
    const double wide = widen(static_cast<uint16_t>(bits));
    const double at = std::isinf(wide) ? std::copysign(infinity, wide) : wide;
    return std::fabs(at - value);
  };
  int best = guess;
  for (const int other : {guess - 1, guess + 1}) {
    if ((other ^ guess) & 0x8000 || std::isnan(widen(other))) continue;
    const bool even = distance(other) == distance(best) && other % 2 == 0;
    if (even || distance(other) < distance(best)) best = other;
  }
  return static_cast<uint16_t>(best);
}

TEST(ElementwiseTest, NarrowsDoublesToTheNearest) {
  std::vector<double> in;
  const CounterRandom random(1, 3);
  for (uint64_t i = 0; i < 20000; ++i) {
    // About ties of normal and denormal results of both formats.
    const int exponent = static_cast<int>(random.Bits(3 * i) % 300) - 160;
    const double tie =
        static_cast<double>(random.Bits(3 * i + 1) % 4096) / 4096 + 1;
    const int tiny = -30 - static_cast<int>(random.Bits(3 * i + 2) % 22);
    const double sign = i % 2 == 0 ? 1 : -1;
    const double off = static_cast<double>(i % 3) - 1;
    in.push_back(sign *
                 std::ldexp(tie + off * std::ldexp(1.0, tiny), exponent));
  }
  const auto count = static_cast<int64_t>(in.size());
  std::vector<uint16_t> out(in.size());
  ForEveryTarget([&] {
    ScaleToFloat16(in.data(), out.data(), count, 1);
    for (size_t i = 0; i < in.size(); ++i) {
      const uint16_t guess = FloatToFloat16(static_cast<float>(in[i]));
      const double value = std::clamp(in[i], -65536.0, 65536.0);
      ASSERT_EQ(out[i], Nearest(value, guess, Float16ToFloat, 65536.0))
          << in[i];
    }
    ScaleToBFloat16(in.data(), out.data(), count, 1);
    for (size_t i = 0; i < in.size(); ++i) {
      const uint16_t guess = FloatToBFloat16(static_cast<float>(in[i]));
      const double infinity = std::ldexp(1.0, 128);
      const double value = std::clamp(in[i], -infinity, infinity);
      ASSERT_EQ(out[i], Nearest(value, guess, BFloat16ToFloat, infinity))
          << in[i];
    }
  });
}

TEST(ElementwiseTest, ScalesBeforeItRounds) {
  // 98256 exceeds float16, a third of it does not.
  const float in[] = {98256.0f, 1.0f, -3.0f};
  uint16_t out[3];
  ScaleToFloat16(in, out, 3, 1 / 3.0f);
  EXPECT_EQ(Float16ToFloat(out[0]), 32752.0f);
  EXPECT_EQ(out[1], FloatToFloat16(1.0f / 3.0f));
  EXPECT_EQ(out[2], FloatToFloat16(-1.0f));
  ScaleToBFloat16(in, out, 3, 1 / 3.0f);
  EXPECT_EQ(out[1], FloatToBFloat16(1.0f / 3.0f));
}

// A double that lies just above halfway: through a float it would become a
// tie, and the tie would go the other way.
TEST(ElementwiseTest, DoublesAreRoundedOnce) {
  const double tie = 1.0 + std::ldexp(1.0, -11);
  const double in[] = {tie + std::ldexp(1.0, -40), tie,
                       tie - std::ldexp(1.0, -40), 1e300,
                       std::numeric_limits<double>::quiet_NaN()};
  uint16_t out[5];
  ScaleToFloat16(in, out, 5, 1.0);
  EXPECT_EQ(out[0], 0x3c01);
  EXPECT_EQ(out[1], 0x3c00);
  EXPECT_EQ(out[2], 0x3c00);
  EXPECT_EQ(out[3], 0x7c00);
  EXPECT_TRUE(std::isnan(Float16ToFloat(out[4])));
  const double brain = -(1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40));
  ScaleToBFloat16(&brain, out, 1, 1.0);
  EXPECT_EQ(out[0], 0xbf81);
}

TEST(ElementwiseTest, WidensEveryPatternExactly) {
  std::vector<uint16_t> in;
  std::vector<float> floats[2];
  std::vector<double> doubles[2];
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    in.push_back(static_cast<uint16_t>(bits));
    floats[0].push_back(Float16ToFloat(in.back()));
    floats[1].push_back(BFloat16ToFloat(in.back()));
  }
  // Beyond what is written past the caches, and not in whole vectors.
  constexpr int kTimes = 8;
  for (int k = 0; k < kTimes; ++k) {
    in.insert(in.end(), in.begin(), in.begin() + 65536);
  }
  in.resize(in.size() - 5);
  for (auto& wide : floats) {
    for (int k = 0; k < kTimes; ++k) {
      wide.insert(wide.end(), wide.begin(), wide.begin() + 65536);
    }
    wide.resize(in.size());
  }
  for (int k = 0; k < 2; ++k) {
    for (const float value : floats[k]) doubles[k].push_back(double{value});
  }
  const auto count = static_cast<int64_t>(in.size());
  ForEveryTarget([&] {
    Guarded<float> out(count, 3, 1.5f);
    Guarded<double> wide(count, 1, 1.5);
    WidenFloat16(in.data(), out.data(), count);
    ASSERT_TRUE(SameBits(out.Values(), floats[0]));
    WidenBFloat16(in.data(), out.data(), count);
    ASSERT_TRUE(SameBits(out.Values(), floats[1]));
    WidenFloat16(in.data(), wide.data(), count);
    ASSERT_TRUE(SameBits(wide.Values(), doubles[0]));
    WidenBFloat16(in.data(), wide.data(), count);
    ASSERT_TRUE(SameBits(wide.Values(), doubles[1]));
    ASSERT_TRUE(out.IsIntact());
    ASSERT_TRUE(wide.IsIntact());
  });
}

TEST(ElementwiseTest, DividesEveryPatternInItsOwnType) {
  std::vector<uint16_t> in, float16, bfloat16;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    in.push_back(static_cast<uint16_t>(bits));
    float16.push_back(FloatToFloat16(Float16ToFloat(in.back()) / 3));
    bfloat16.push_back(FloatToBFloat16(BFloat16ToFloat(in.back()) / 3));
  }
  ForEveryTarget([&] {
    Guarded<uint16_t> values(0x10000, 1, 0x5555);
    values.Fill(in);
    DivideFloat16(values.data(), values.count(), 3);
    ASSERT_TRUE(SameBits(values.Values(), float16));
    values.Fill(in);
    DivideBFloat16(values.data(), values.count(), 3);
    ASSERT_TRUE(SameBits(values.Values(), bfloat16));
    ASSERT_TRUE(values.IsIntact());
  });
}

template <typename T>
void ExpectPlainArithmetic(int64_t count) {
  const auto a = Normals<T>(1, count);
  const auto b = Normals<T>(2, count);
  std::vector<T> sums, quotients;
  for (size_t i = 0; i < a.size(); ++i) {
    sums.push_back(a[i] + b[i]);
    quotients.push_back(a[i] / 3);
  }
  ForEveryTarget([&] {
    Guarded<T> values(count, 1, T{7});
    values.Fill(a);
    Add(values.data(), b.data(), count);
    ASSERT_TRUE(SameBits(values.Values(), sums));
    values.Fill(a);
    Divide(values.data(), count, T{3});
    ASSERT_TRUE(SameBits(values.Values(), quotients));
    ASSERT_TRUE(values.IsIntact());
    ASSERT_EQ(CountNonFinite(values.data(), count), 0);
    if (count < 50) return;
    values.data()[0] = std::numeric_limits<T>::max();
    values.data()[3] = std::numeric_limits<T>::infinity();
    values.data()[count / 2] = -std::numeric_limits<T>::infinity();
    values.data()[count - 1] = std::numeric_limits<T>::quiet_NaN();
    ASSERT_EQ(CountNonFinite(values.data(), count), 3);
  });
}

TEST(ElementwiseTest, AddsDividesAndCounts) {
  for (const int64_t count : {0, 1, 7, 63, 1000, 200001}) {
    ExpectPlainArithmetic<float>(count);
    ExpectPlainArithmetic<double>(count);
  }
}

}  // namespace
}  // namespace coxswain
