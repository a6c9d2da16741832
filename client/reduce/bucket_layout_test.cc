#include "client/reduce/bucket_layout.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

ParameterSpec Parameter(const std::string& name, int64_t count,
                        DType dtype = DType::kFloat32) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {count};
  spec.dtype = dtype;
  return spec;
}

std::vector<int> Members(const Bucket& bucket) {
  std::vector<int> members;
  for (const GradientSlot& slot : bucket.gradients) {
    members.push_back(slot.parameter);
  }
  return members;
}

TEST(BucketPlanTest, ReversedRegistrationOrderAndASmallFirstBucket) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("a", 10), Parameter("b", 10), Parameter("c", 10),
      Parameter("d", 10), Parameter("e", 10)};
  ASSERT_OK_AND_ASSIGN(const auto buckets, PlanBuckets({40, 80}, parameters));
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_THAT(Members(buckets[0]), ElementsAre(4));
  EXPECT_THAT(Members(buckets[1]), ElementsAre(3, 2));
  EXPECT_THAT(Members(buckets[2]), ElementsAre(1, 0));
  EXPECT_EQ(buckets[1].gradients[1].offset, 10);
  EXPECT_EQ(buckets[1].data.count, 20);
  EXPECT_EQ(buckets[1].index, 1);
  EXPECT_FALSE(buckets[1].last);
  EXPECT_TRUE(buckets[2].last);
}

TEST(BucketPlanTest, ABucketMayExceedItsLimitByOneGradient) {
  ASSERT_OK_AND_ASSIGN(
      const auto buckets,
      PlanBuckets({44, 44}, {Parameter("a", 1000), Parameter("b", 10)}));
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].data.count, 1010);
}

TEST(BucketPlanTest, TypesDoNotMixAndTheSmallLimitHoldsOncePerType) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("a", 10), Parameter("a16", 10, DType::kFloat16),
      Parameter("b", 10), Parameter("b16", 10, DType::kFloat16),
      Parameter("c", 10)};
  ASSERT_OK_AND_ASSIGN(const auto buckets, PlanBuckets({40, 80}, parameters));
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_THAT(Members(buckets[0]), ElementsAre(4));
  // The halves are complete with place 1, the others only with place 0.
  EXPECT_THAT(Members(buckets[1]), ElementsAre(3, 1));
  EXPECT_THAT(Members(buckets[2]), ElementsAre(2, 0));
  EXPECT_EQ(buckets[1].data.dtype, DType::kFloat16);
}

TEST(BucketPlanTest, FollowsAGivenReadyOrder) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("a", 10), Parameter("b", 10), Parameter("c", 10)};
  ASSERT_OK_AND_ASSIGN(const auto buckets,
                       PlanBuckets({40, 80}, parameters, {1, 2, 0}));
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_THAT(Members(buckets[0]), ElementsAre(1));
  EXPECT_THAT(Members(buckets[1]), ElementsAre(2, 0));
}

TEST(BucketPlanTest, LateOnesHaveTheLastBucketsToThemselves) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("a", 10), Parameter("b", 10), Parameter("c", 10),
      Parameter("d", 10), Parameter("e", 10)};
  BucketPlanOptions options = {40, 80};
  options.late_parameters = {"b", "e"};
  options.uncounted_parameters = {"b"};
  for (const std::vector<int>& order :
       {std::vector<int>(), std::vector<int>{4, 3, 2, 1, 0}}) {
    ASSERT_OK_AND_ASSIGN(const auto buckets,
                         PlanBuckets(options, parameters, order));
    ASSERT_EQ(buckets.size(), 3u);
    EXPECT_THAT(Members(buckets[0]), ElementsAre(3));
    EXPECT_THAT(Members(buckets[1]), ElementsAre(2, 0));
    // No small one comes first: there is nothing to begin early with.
    EXPECT_THAT(Members(buckets[2]), ElementsAre(4, 1));
    EXPECT_TRUE(buckets[2].last);
    EXPECT_TRUE(buckets[2].gradients[0].measured);
    EXPECT_FALSE(buckets[2].gradients[1].measured);
  }
  ASSERT_OK_AND_ASSIGN(const auto buckets,
                       PlanBuckets(options, parameters, {1, 0, 4, 2, 3}));
  EXPECT_THAT(Members(buckets[0]), ElementsAre(0));
  EXPECT_THAT(Members(buckets[2]), ElementsAre(1, 4));
}

// Whatever the other parameters' sizes, and the order of gradients.
TEST(BucketPlanTest, SeparateOnesHaveBucketsThatDependOnThemAlone) {
  const auto plan = [](int64_t others, const std::vector<int>& order,
                       const std::set<std::string>& late) {
    const std::vector<ParameterSpec> parameters = {
        Parameter("a", others), Parameter("norm1", 10), Parameter("b", others),
        Parameter("norm2", 10), Parameter("c", others), Parameter("norm3", 10)};
    BucketPlanOptions options = {40, 80};
    options.separate_parameters = {"norm1", "norm2", "norm3"};
    options.late_parameters = late;
    std::vector<std::vector<int>> separate;
    ASSERT_OK_AND_ASSIGN(const auto buckets,
                         PlanBuckets(options, parameters, order));
    int last_place = -1;
    for (const Bucket& bucket : buckets) {
      const std::vector<int> members = Members(bucket);
      int place = -1;
      for (const int member : members) {
        EXPECT_EQ(member % 2, members[0] % 2) << "a bucket of both kinds";
        const auto at = std::find(order.begin(), order.end(), member);
        place = std::max(place, static_cast<int>(at - order.begin()));
      }
      if (members[0] % 2 == 1) separate.push_back(members);
      // None waits for one that is numbered after it.
      if (late.empty() && !order.empty()) {
        EXPECT_LT(last_place, place);
      }
      last_place = place;
    }
    EXPECT_THAT(separate,
                UnorderedElementsAre(ElementsAre(5, 3), ElementsAre(1)));
  };
  for (const std::set<std::string>& late :
       {std::set<std::string>(),
        std::set<std::string>{"b", "norm1", "norm2", "norm3"}}) {
    for (const int64_t others : {4, 10, 1000}) {
      plan(others, {}, late);
      plan(others, {5, 4, 3, 2, 1, 0}, late);
      plan(others, {1, 0, 4, 3, 2, 5}, late);
    }
  }
}

TEST(BucketPlanTest, ScalarsAndEmptyTensorsHaveASlot) {
  ParameterSpec scalar = Parameter("scale", 0);
  scalar.shape = {};
  ASSERT_OK_AND_ASSIGN(const auto buckets,
                       PlanBuckets({}, {Parameter("empty", 0), scalar}));
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_THAT(Members(buckets[0]), ElementsAre(1, 0));
  EXPECT_EQ(buckets[0].data.count, 1);
}

TEST(BucketPlanTest, RefusesInvalidOptions) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", 10),
                                                 Parameter("b", 10)};
  EXPECT_THAT(PlanBuckets({0, 80}, parameters),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("at least 1 byte")));
  EXPECT_THAT(PlanBuckets({}, parameters, {0, 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("not a permutation")));
  EXPECT_THAT(PlanBuckets({}, {Parameter("bad", -1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bad")));
}

}  // namespace
}  // namespace coxswain
