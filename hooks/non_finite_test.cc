#include "hooks/non_finite.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/float16.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

std::vector<ParameterSpec> Parameters(DType dtype) {
  return {{"a", {2}, dtype, Device(), {}},
          {"empty", {0}, dtype, Device(), {}},
          {"b", {3}, dtype, Device(), {}}};
}

// b, empty and a, in this order.
Bucket BucketOf(void* data, DType dtype) {
  Bucket bucket;
  bucket.data = Span{data, 5, dtype, Device()};
  bucket.gradients = {{2, 0, 3}, {1, 3, 0}, {0, 3, 2}};
  return bucket;
}

// Searches on one rank per vector.
template <typename T>
std::vector<NonFiniteGradient> Search(std::vector<std::vector<T>> values,
                                      DType dtype) {
  const auto world =
      InProcessWorld::Create(static_cast<int>(values.size()), absl::Minutes(1));
  const std::vector<ParameterSpec> parameters = Parameters(dtype);
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<NonFiniteSearch> searches;
  std::vector<WorkPtr> works;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    communicators.push_back(world->MakeRank(static_cast<int>(rank)));
    searches.emplace_back(BucketOf(values[rank].data(), dtype), parameters);
    works.push_back(searches.back().Start(*communicators.back()));
  }
  for (const WorkPtr& work : works) EXPECT_OK(work->Wait(absl::Minutes(1)));
  for (const NonFiniteSearch& search : searches) {
    EXPECT_EQ(search.Found().size(), searches[0].Found().size());
  }
  return searches[0].Found();
}

TEST(NonFiniteTest, NamesTheFirstGradientOfEachRank) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto found =
      Search<float>({{1, 2, 3, -inf, 5}, {1, 2, 3, 4, 5}, {nan, 2, 3, inf, 5}},
                    DType::kFloat32);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].rank, 0);
  EXPECT_EQ(found[0].parameter, "a");
  EXPECT_EQ(found[1].rank, 2);
  EXPECT_EQ(found[1].parameter, "b");
}

TEST(NonFiniteTest, FindsNothingAmongFiniteGradients) {
  EXPECT_TRUE(Search<double>({{1, 2, 3, 4, 1e308}}, DType::kFloat64).empty());
}

TEST(NonFiniteTest, KnowsEachType) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Search<double>({{1, 2, 3, 4, inf}}, DType::kFloat64).size(), 1u);
  // 65504 and a NaN; the largest bfloat16 and an infinity.
  EXPECT_EQ(Search<uint16_t>({{0x7bff, 0, 0, 0, 0xfc01}, {0x7bff, 0, 0, 0, 0}},
                             DType::kFloat16)
                .size(),
            1u);
  EXPECT_EQ(Search<uint16_t>({{0x7f7f, 0, 0, 0, 0xff80}, {0x7f7f, 0, 0, 0, 0}},
                             DType::kBFloat16)
                .size(),
            1u);
}

TEST(NonFiniteTest, FillsWithNan) {
  std::vector<double> doubles(3);
  FillWithNan(Span{doubles.data(), 3, DType::kFloat64, Device()});
  for (const double value : doubles) EXPECT_TRUE(std::isnan(value));
  std::vector<uint16_t> halves(3);
  FillWithNan(Span{halves.data(), 3, DType::kFloat16, Device()});
  for (const uint16_t value : halves) {
    EXPECT_TRUE(std::isnan(Float16ToFloat(value)));
    EXPECT_TRUE(std::isnan(BFloat16ToFloat(value)));
  }
}

}  // namespace
}  // namespace coxswain
