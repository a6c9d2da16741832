#ifndef COXSWAIN_CLIENT_SHARD_SHARD_LAYOUT_FOR_TEST_H_
#define COXSWAIN_CLIENT_SHARD_SHARD_LAYOUT_FOR_TEST_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/reduce/bucket_layout.h"
#include "client/shard/shard_layout.h"
#include "gtest/gtest.h"

namespace coxswain {

// Returns the slices of these parameters on so many ranks, in buckets of one
// size.
inline ShardLayout LayoutOf(const std::vector<ParameterSpec>& parameters,
                            int ranks, int64_t bucket_bytes = 1 << 20) {
  BucketPlanOptions options;
  options.first_bucket_bytes = bucket_bytes;
  options.bucket_bytes = bucket_bytes;
  auto buckets = PlanBuckets(options, parameters);
  EXPECT_OK(buckets);
  auto layout = ShardLayout::Create(*std::move(buckets), ranks);
  EXPECT_OK(layout);
  return *std::move(layout);
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SHARD_SHARD_LAYOUT_FOR_TEST_H_
