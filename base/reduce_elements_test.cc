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

}  // namespace
}  // namespace coxswain
