#include "base/float16.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

// Returns the value of a finite float16 by its definition.
double Float16Value(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int mantissa = half & 0x3ff;
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, -24)
                               : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

bool IsFinite16(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

TEST(Float16Test, EveryFiniteValueWidensByDefinitionAndComesBack) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto half = static_cast<uint16_t>(i);
    if (!IsFinite16(half)) continue;
    ASSERT_EQ(Float16ToFloat(half), static_cast<float>(Float16Value(half)))
        << i;
    ASSERT_EQ(FloatToFloat16(Float16ToFloat(half)), half);
  }
}

TEST(Float16Test, HalfwayGoesToTheEvenNeighbour) {
  for (uint32_t i = 0; i < 0x7bff; ++i) {  // positive, below the largest
    const double low = Float16Value(static_cast<uint16_t>(i));
    const double high = Float16Value(static_cast<uint16_t>(i + 1));
    const auto middle = static_cast<float>((low + high) / 2);  // exact
    const uint16_t even = static_cast<uint16_t>(i % 2 == 0 ? i : i + 1);
    ASSERT_EQ(FloatToFloat16(middle), even) << i;
    ASSERT_EQ(FloatToFloat16(-middle), even | 0x8000) << i;
    ASSERT_EQ(FloatToFloat16(std::nextafter(middle, 0.0f)), i);
    ASSERT_EQ(FloatToFloat16(std::nextafter(middle, 1e9f)), i + 1);
  }
}

TEST(Float16Test, TooLargeBecomesInfinityAndNanStays) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatToFloat16(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToFloat16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToFloat16(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToFloat16(infinity), 0x7c00);
  EXPECT_EQ(Float16ToFloat(0xfc00), -infinity);
  EXPECT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(Float16ToFloat(0x7c01)));
}

TEST(BFloat16Test, EveryValueComesBack) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto brain = static_cast<uint16_t>(i);
    const float value = BFloat16ToFloat(brain);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(value))));
    } else {
      ASSERT_EQ(FloatToBFloat16(value), brain);
    }
  }
}

TEST(BFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(FloatToBFloat16(FloatFromBits(0x3f808000)), 0x3f80);  // tie, even
  EXPECT_EQ(FloatToBFloat16(FloatFromBits(0x3f818000)), 0x3f82);  // tie, odd
  EXPECT_EQ(FloatToBFloat16(FloatFromBits(0x3f808001)), 0x3f81);
  EXPECT_EQ(FloatToBFloat16(FloatFromBits(0x3f807fff)), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::max()), 0x7f80);
}

// A NaN whose payload lies in the lower half only must not become infinity.
TEST(BFloat16Test, NanStays) {
  EXPECT_TRUE(
      std::isnan(BFloat16ToFloat(FloatToBFloat16(FloatFromBits(0x7f800001)))));
}

}  // namespace
}  // namespace coxswain
