#include "client/reduce/bucket_pool.h"

#include <vector>

#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"

namespace coxswain::bucket_pool_test {
namespace {

using testing::HasSubstr;

// Of so many bytes, in whole cache lines.
std::vector<Bucket> BucketsOf(const std::vector<int64_t>& bytes) {
  std::vector<Bucket> buckets;
  for (const int64_t size : bytes) {
    Bucket bucket;
    bucket.index = static_cast<int>(buckets.size());
    bucket.data.count = size / 4;
    buckets.push_back(bucket);
  }
  return buckets;
}

TEST(BucketPoolTest, MemoryThatWasGivenBackServesTheNextBucket) {
  LoopbackCommunicator alone;
  BucketPool pool(&alone);
  pool.SetBuckets(BucketsOf({640, 640, 640}));
  EXPECT_EQ(pool.use().bytes, 0);
  ASSERT_OK_AND_ASSIGN(const Span first, pool.Take(0));
  EXPECT_EQ(first.count, 160);
  ASSERT_OK_AND_ASSIGN(const Span again, pool.Take(0));
  EXPECT_EQ(again.data, first.data);
  ASSERT_OK_AND_ASSIGN(const Span second, pool.Take(1));
  EXPECT_NE(second.data, first.data);
  pool.GiveBack(0);
  pool.GiveBack(0);  // it has none any more
  ASSERT_OK_AND_ASSIGN(const Span third, pool.Take(2));
  EXPECT_EQ(third.data, first.data);
  EXPECT_EQ(pool.use().bytes, 1280);
  EXPECT_EQ(pool.use().allocations, 2);
}

TEST(BucketPoolTest, MuchLargerMemoryIsLeftForItsOwnSize) {
  LoopbackCommunicator alone;
  BucketPool pool(&alone);
  pool.SetBuckets(BucketsOf({6400, 640, 1280, 0}));
  ASSERT_OK_AND_ASSIGN(const Span large, pool.Take(0));
  pool.GiveBack(0);
  ASSERT_OK_AND_ASSIGN(const Span small, pool.Take(1));
  EXPECT_NE(small.data, large.data);
  ASSERT_OK(pool.Take(2));
  pool.GiveBack(1);
  pool.GiveBack(2);
  // Of two that fit, the smaller one.
  ASSERT_OK_AND_ASSIGN(const Span again, pool.Take(1));
  EXPECT_EQ(again.data, small.data);
  ASSERT_OK_AND_ASSIGN(const Span none, pool.Take(3));
  EXPECT_EQ(none.count, 0);
}

TEST(BucketPoolTest, WhatAStepDidNotNeedIsFreedAfterTheNextOne) {
  LoopbackCommunicator alone;
  BucketPool pool(&alone);
  pool.SetBuckets(BucketsOf({640, 640, 640, 640, 640, 640}));
  for (int bucket = 0; bucket < 6; ++bucket) ASSERT_OK(pool.Take(bucket));
  EXPECT_EQ(pool.use().bytes, 6 * 640);
  pool.EndStep();
  EXPECT_EQ(pool.use().bytes, 6 * 640);  // the next one is likely to be alike
  for (int bucket = 0; bucket < 6; ++bucket) {
    ASSERT_OK(pool.Take(bucket));
    pool.GiveBack(bucket);
  }
  pool.EndStep();
  EXPECT_EQ(pool.use().bytes, BucketPool::kKept * 640);
  EXPECT_EQ(pool.use().peak_bytes, 6 * 640);
  EXPECT_EQ(pool.use().allocations, 6);
}

// Rather than kept beside what is allocated.
TEST(BucketPoolTest, MemoryThatDoesNotFitIsFreed) {
  LoopbackCommunicator alone;
  BucketPool pool(&alone);
  pool.SetBuckets(BucketsOf({64, 64, 64, 640, 640, 640}));
  for (int bucket = 0; bucket < 3; ++bucket) ASSERT_OK(pool.Take(bucket));
  for (int bucket = 0; bucket < 3; ++bucket) pool.GiveBack(bucket);
  for (int bucket = 3; bucket < 6; ++bucket) ASSERT_OK(pool.Take(bucket));
  EXPECT_EQ(pool.use().bytes, 3 * 640);
  EXPECT_EQ(pool.use().peak_bytes, 3 * 640);
}

TEST(BucketPoolTest, OtherBucketsBeginWithoutMemory) {
  LoopbackCommunicator alone;
  BucketPool pool(&alone);
  pool.SetBuckets(BucketsOf({640}));
  ASSERT_OK(pool.Take(0));
  pool.SetBuckets(BucketsOf({128, 128}));
  EXPECT_EQ(pool.use().bytes, 0);
  ASSERT_OK_AND_ASSIGN(const Span second, pool.Take(1));
  EXPECT_EQ(second.count, 32);
}

TEST(BucketPoolTest, AnErrorSaysHowMuchIsHeld) {
  ScarceCommunicator scarce(1);
  BucketPool pool(&scarce);
  pool.SetBuckets(BucketsOf({640, 1280}));
  ASSERT_OK(pool.Take(0));
  EXPECT_THAT(pool.Take(1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1280 bytes for a bucket, beside 640")));
  // What is there is there.
  EXPECT_OK(pool.Take(0));
  EXPECT_EQ(pool.use().bytes, 640);
}

}  // namespace
}  // namespace coxswain::bucket_pool_test
