#include "base/reduce_elements.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::ElementsAre;

template <typename T>
std::vector<T> Reduced(ElementType dtype, ElementOp op, std::vector<T> a,
                       const std::vector<T>& b) {
  ReduceElements(dtype, op, a.data(), a.data(), b.data(), a.size());
  return a;
}

template <typename T>
void ExpectAllOps(ElementType dtype) {
  const std::vector<T> a = {1, 7, 3};
  const std::vector<T> b = {4, 2, 3};
  EXPECT_THAT(Reduced(dtype, ElementOp::kSum, a, b), ElementsAre(5, 9, 6));
  EXPECT_THAT(Reduced(dtype, ElementOp::kMin, a, b), ElementsAre(1, 2, 3));
  EXPECT_THAT(Reduced(dtype, ElementOp::kMax, a, b), ElementsAre(4, 7, 3));
}

TEST(ElementOpsTest, PlainTypes) {
  ExpectAllOps<float>(ElementType::kFloat32);
  ExpectAllOps<double>(ElementType::kFloat64);
  ExpectAllOps<int8_t>(ElementType::kInt8);
  ExpectAllOps<int32_t>(ElementType::kInt32);
  ExpectAllOps<int64_t>(ElementType::kInt64);
  ExpectAllOps<uint8_t>(ElementType::kUInt8);
}

TEST(ElementOpsTest, NegativeIntegersCompareAsSigned) {
  EXPECT_THAT(Reduced<int8_t>(ElementType::kInt8, ElementOp::kMin, {-1}, {1}),
              ElementsAre(-1));
}

TEST(ElementOpsTest, IntegersWrap) {
  EXPECT_THAT(Reduced<int8_t>(ElementType::kInt8, ElementOp::kSum, {127}, {1}),
              ElementsAre(-128));
  EXPECT_THAT(Reduced<int32_t>(ElementType::kInt32, ElementOp::kSum,
                               {std::numeric_limits<int32_t>::max()}, {1}),
              ElementsAre(std::numeric_limits<int32_t>::min()));
}

TEST(ElementOpsTest, Float16IsComputedInFloatAndRoundedOnce) {
  // 2048 + 1 is a tie between 2048 and 2050; 2048 + 3 one between 2050 and
  // 2052.
  EXPECT_THAT(Reduced<uint16_t>(ElementType::kFloat16, ElementOp::kSum,
                                {FloatToFloat16(2048), FloatToFloat16(2048)},
                                {FloatToFloat16(1), FloatToFloat16(3)}),
              ElementsAre(FloatToFloat16(2048), FloatToFloat16(2052)));
  EXPECT_THAT(Reduced<uint16_t>(ElementType::kFloat16, ElementOp::kMax,
                                {FloatToFloat16(-2)}, {FloatToFloat16(1)}),
              ElementsAre(FloatToFloat16(1)));
}

TEST(ElementOpsTest, BFloat16IsComputedInFloatAndRoundedOnce) {
  EXPECT_THAT(Reduced<uint16_t>(ElementType::kBFloat16, ElementOp::kSum,
                                {FloatToBFloat16(256), FloatToBFloat16(256)},
                                {FloatToBFloat16(1), FloatToBFloat16(3)}),
              ElementsAre(FloatToBFloat16(256), FloatToBFloat16(260)));
  EXPECT_THAT(Reduced<uint16_t>(ElementType::kBFloat16, ElementOp::kMin,
                                {FloatToBFloat16(-2)}, {FloatToBFloat16(1)}),
              ElementsAre(FloatToBFloat16(-2)));
}

TEST(ElementOpsTest, ANanIsNotLost) {
  const float nan = std::nanf("");
  for (ElementOp op : {ElementOp::kSum, ElementOp::kMin, ElementOp::kMax}) {
    const auto result =
        Reduced<float>(ElementType::kFloat32, op, {nan, 1.0f}, {1.0f, nan});
    EXPECT_TRUE(std::isnan(result[0]));
    EXPECT_TRUE(std::isnan(result[1]));
  }
}

template <typename T>
std::vector<T> Quotients(ElementType type, std::vector<T> a, bool divides_a,
                         const std::vector<T>& b, int divisor) {
  AddQuotients(type, a.data(), a.data(), divides_a, b.data(), divisor,
               a.size());
  return a;
}

TEST(AddQuotientsTest, DividesOneOrBothBeforeItAdds) {
  EXPECT_THAT(Quotients<float>(ElementType::kFloat32, {4, 6}, true, {8, 2}, 2),
              ElementsAre(6, 4));
  EXPECT_THAT(Quotients<float>(ElementType::kFloat32, {4, 6}, false, {8, 2}, 2),
              ElementsAre(8, 7));
  EXPECT_THAT(Quotients<double>(ElementType::kFloat64, {3}, true, {6}, 3),
              ElementsAre(3));
  EXPECT_THAT(Quotients<float>(ElementType::kFloat32, {5}, true, {6}, 1),
              ElementsAre(11));
}

// Of any float, also one whose quotient is subnormal or overflows in the sum.
TEST(AddQuotientsTest, QuotientsAreRoundedAsByADivisionOfTheirOwn) {
  std::vector<float> a;
  std::vector<float> b;
  for (uint32_t i = 0; i < 100000; ++i) {
    a.push_back(FloatFromBits(i * 2654435761u));
    b.push_back(FloatFromBits(i * 2246822519u));
  }
  for (const int divisor : {2, 3, 4, 7, 8}) {
    std::vector<float> expected;
    for (size_t i = 0; i < a.size(); ++i) {
      volatile const float left = a[i] / static_cast<float>(divisor);
      volatile const float right = b[i] / static_cast<float>(divisor);
      expected.push_back(left + right);
    }
    const std::vector<float> sums =
        Quotients(ElementType::kFloat32, a, true, b, divisor);
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(sums[i])) << i;
      } else {
        ASSERT_EQ(FloatBits(sums[i]), FloatBits(expected[i])) << i;
      }
    }
  }
}

TEST(AddQuotientsTest, QuotientsOf16BitsAreRoundedToThem) {
  // A third of 1 has more digits than either type.
  EXPECT_THAT(Quotients<uint16_t>(ElementType::kFloat16, {FloatToFloat16(0)},
                                  false, {FloatToFloat16(1)}, 3),
              ElementsAre(FloatToFloat16(1.0f / 3)));
  const float third = BFloat16ToFloat(FloatToBFloat16(1.0f / 3));
  EXPECT_THAT(Quotients<uint16_t>(ElementType::kBFloat16, {FloatToBFloat16(1)},
                                  true, {FloatToBFloat16(1)}, 3),
              ElementsAre(FloatToBFloat16(third + third)));
}

}  // namespace
}  // namespace coxswain
