#include "client/comm/float16.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

bool IsNan16(uint16_t bits, uint16_t infinity) {
  return (bits & 0x7fff) > infinity;
}

TEST(Float16Test, EveryFloat16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = FloatFromFloat16(half);
    if (IsNan16(half, 0x7c00)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(IsNan16(Float16FromFloat(value), 0x7c00)) << bits;
    } else {
      ASSERT_EQ(Float16FromFloat(value), half) << bits;
    }
  }
}

TEST(Float16Test, EveryBFloat16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = FloatFromBFloat16(half);
    if (IsNan16(half, 0x7f80)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(IsNan16(BFloat16FromFloat(value), 0x7f80)) << bits;
    } else {
      ASSERT_EQ(BFloat16FromFloat(value), half) << bits;
    }
  }
}

TEST(Float16Test, KnownFloat16Values) {
  EXPECT_EQ(FloatFromFloat16(0x3c00), 1.0f);
  EXPECT_EQ(FloatFromFloat16(0xc000), -2.0f);
  EXPECT_EQ(FloatFromFloat16(0x7bff), 65504.0f);
  EXPECT_EQ(FloatFromFloat16(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(FloatFromFloat16(0x03ff), std::ldexp(1023.0f, -24));
  EXPECT_EQ(FloatFromFloat16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(FloatFromFloat16(0x8000)));
}

// Between any two neighbours: the middle goes to the even one, and what is on
// either side of it to the nearer one.
template <typename ToFloat, typename FromFloat>
void ExpectNearestEven(uint16_t largest, ToFloat to_float,
                       FromFloat from_float) {
  for (uint32_t bits = 0; bits < largest; ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    const float middle = static_cast<float>(
        (static_cast<double>(to_float(low)) + to_float(high)) / 2);
    const float infinity = std::numeric_limits<float>::infinity();
    ASSERT_EQ(from_float(middle), low % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(from_float(std::nextafter(middle, 0.0f)), low) << bits;
    ASSERT_EQ(from_float(std::nextafter(middle, infinity)), high) << bits;
    ASSERT_EQ(from_float(-middle), from_float(middle) | 0x8000) << bits;
  }
}

TEST(Float16Test, Float16RoundsToNearestEven) {
  ExpectNearestEven(0x7bff, FloatFromFloat16, Float16FromFloat);
  EXPECT_EQ(Float16FromFloat(65519.996f), 0x7bff);
  EXPECT_EQ(Float16FromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(Float16FromFloat(1e30f), 0x7c00);
  EXPECT_EQ(Float16FromFloat(1e-30f), 0);
}

TEST(Float16Test, BFloat16RoundsToNearestEven) {
  ExpectNearestEven(0x7f7f, FloatFromBFloat16, BFloat16FromFloat);
  EXPECT_EQ(BFloat16FromFloat(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace coxswain
