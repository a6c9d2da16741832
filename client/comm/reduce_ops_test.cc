#include "client/comm/reduce_ops.h"

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
std::vector<T> Reduced(DType dtype, ReduceOp op, std::vector<T> a,
                       const std::vector<T>& b) {
  Reduce(dtype, op, a.data(), a.data(), b.data(), a.size());
  return a;
}

template <typename T>
void ExpectAllOps(DType dtype) {
  const std::vector<T> a = {1, 7, 3};
  const std::vector<T> b = {4, 2, 3};
  EXPECT_THAT(Reduced(dtype, ReduceOp::kSum, a, b), ElementsAre(5, 9, 6));
  EXPECT_THAT(Reduced(dtype, ReduceOp::kMin, a, b), ElementsAre(1, 2, 3));
  EXPECT_THAT(Reduced(dtype, ReduceOp::kMax, a, b), ElementsAre(4, 7, 3));
}

TEST(ReduceOpsTest, PlainTypes) {
  ExpectAllOps<float>(DType::kFloat32);
  ExpectAllOps<double>(DType::kFloat64);
  ExpectAllOps<int8_t>(DType::kInt8);
  ExpectAllOps<int32_t>(DType::kInt32);
  ExpectAllOps<int64_t>(DType::kInt64);
  ExpectAllOps<uint8_t>(DType::kUInt8);
}

TEST(ReduceOpsTest, NegativeIntegersCompareAsSigned) {
  EXPECT_THAT(Reduced<int8_t>(DType::kInt8, ReduceOp::kMin, {-1}, {1}),
              ElementsAre(-1));
}

TEST(ReduceOpsTest, IntegersWrap) {
  EXPECT_THAT(Reduced<int8_t>(DType::kInt8, ReduceOp::kSum, {127}, {1}),
              ElementsAre(-128));
  EXPECT_THAT(Reduced<int32_t>(DType::kInt32, ReduceOp::kSum,
                               {std::numeric_limits<int32_t>::max()}, {1}),
              ElementsAre(std::numeric_limits<int32_t>::min()));
}

TEST(ReduceOpsTest, Float16IsComputedInFloatAndRoundedOnce) {
  // 2048 + 1 is a tie between 2048 and 2050; 2048 + 3 one between 2050 and
  // 2052.
  EXPECT_THAT(Reduced<uint16_t>(DType::kFloat16, ReduceOp::kSum,
                                {FloatToFloat16(2048), FloatToFloat16(2048)},
                                {FloatToFloat16(1), FloatToFloat16(3)}),
              ElementsAre(FloatToFloat16(2048), FloatToFloat16(2052)));
  EXPECT_THAT(Reduced<uint16_t>(DType::kFloat16, ReduceOp::kMax,
                                {FloatToFloat16(-2)}, {FloatToFloat16(1)}),
              ElementsAre(FloatToFloat16(1)));
}

TEST(ReduceOpsTest, BFloat16IsComputedInFloatAndRoundedOnce) {
  EXPECT_THAT(Reduced<uint16_t>(DType::kBFloat16, ReduceOp::kSum,
                                {FloatToBFloat16(256), FloatToBFloat16(256)},
                                {FloatToBFloat16(1), FloatToBFloat16(3)}),
              ElementsAre(FloatToBFloat16(256), FloatToBFloat16(260)));
  EXPECT_THAT(Reduced<uint16_t>(DType::kBFloat16, ReduceOp::kMin,
                                {FloatToBFloat16(-2)}, {FloatToBFloat16(1)}),
              ElementsAre(FloatToBFloat16(-2)));
}

TEST(ReduceOpsTest, ANanIsNotLost) {
  const float nan = std::nanf("");
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
    const auto result =
        Reduced<float>(DType::kFloat32, op, {nan, 1.0f}, {1.0f, nan});
    EXPECT_TRUE(std::isnan(result[0]));
    EXPECT_TRUE(std::isnan(result[1]));
  }
}

}  // namespace
}  // namespace coxswain
