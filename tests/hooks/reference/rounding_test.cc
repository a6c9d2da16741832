#include "tests/hooks/reference/rounding.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/float16.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace reference {
namespace {

TEST(RoundingTest, ByHand) {
  EXPECT_EQ(RoundTo(DType::kFloat16, 2049), 2048);  // tie to even
  EXPECT_EQ(RoundTo(DType::kFloat16, 2051), 2052);
  EXPECT_EQ(RoundTo(DType::kFloat16, 65519), 65504);
  EXPECT_EQ(RoundTo(DType::kFloat16, -65520),
            -std::numeric_limits<double>::infinity());
  EXPECT_EQ(RoundTo(DType::kFloat16, 0x1.8p-24), 0x1p-23);
  EXPECT_EQ(RoundTo(DType::kFloat16, 0x1p-25), 0);
  EXPECT_EQ(RoundTo(DType::kBFloat16, 257), 256);
  EXPECT_EQ(RoundTo(DType::kBFloat16, 1e38), std::ldexp(150.0, 119));
  EXPECT_TRUE(std::isnan(RoundTo(DType::kFloat16, std::nan(""))));
}

// Every value of both formats is itself, and just above the middle of it and
// its neighbour lies the neighbour.
TEST(RoundingTest, EveryValueOfTheFormatsIsItself) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double value = Float16ToFloat(static_cast<uint16_t>(bits));
    const double next = Float16ToFloat(static_cast<uint16_t>(bits + 1));
    EXPECT_EQ(RoundTo(DType::kFloat16, -value), -value);
    EXPECT_EQ(RoundTo(DType::kFloat16, (value + next) / 2 * (1 + 1e-9)), next);
  }
  for (uint32_t bits = 0; bits < 0x7f7f; ++bits) {
    const double value = BFloat16ToFloat(static_cast<uint16_t>(bits));
    const double next = BFloat16ToFloat(static_cast<uint16_t>(bits + 1));
    EXPECT_EQ(RoundTo(DType::kBFloat16, -value), -value);
    EXPECT_EQ(RoundTo(DType::kBFloat16, (value + next) / 2 * (1 + 1e-9)), next);
  }
}

}  // namespace
}  // namespace reference
}  // namespace coxswain
