#include "client/device/cuda/block_cache.h"

#include <cstdlib>
#include <set>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

// Gives out at most `limit` bytes.
class Source {
 public:
  explicit Source(int64_t limit) : left_(limit) {}
  ~Source() { EXPECT_EQ(blocks_.size(), 0u); }

  BlockCache::Get get() {
    return [this](int64_t bytes) -> absl::StatusOr<void*> {
      asked_.push_back(bytes);
      if (bytes > left_) return absl::ResourceExhaustedError("no more");
      left_ -= bytes;
      void* const block = std::malloc(1);
      blocks_[block] = bytes;
      return block;
    };
  }
  BlockCache::GiveBack give_back() {
    return [this](void* block) {
      left_ += blocks_.at(block);
      blocks_.erase(block);
      std::free(block);
    };
  }
  const std::vector<int64_t>& asked() const { return asked_; }

 private:
  int64_t left_;
  std::vector<int64_t> asked_;
  std::unordered_map<void*, int64_t> blocks_;
};

TEST(BlockCacheTest, RoundsByAQuarterAtMost) {
  EXPECT_EQ(BlockCache::Rounded(1), 256);
  EXPECT_EQ(BlockCache::Rounded(256), 256);
  EXPECT_EQ(BlockCache::Rounded(257), 512);
  EXPECT_EQ(BlockCache::Rounded(1 << 20), 1 << 20);
  EXPECT_EQ(BlockCache::Rounded((1 << 20) + 1), (1 << 20) + (1 << 18));
  EXPECT_EQ(BlockCache::Rounded(INT64_MAX), INT64_MAX);
  for (int64_t bytes = 1024; bytes < 1 << 20; bytes += 999) {
    EXPECT_GE(BlockCache::Rounded(bytes), bytes);
    EXPECT_LE(BlockCache::Rounded(bytes), bytes + bytes / 4) << bytes;
  }
}

TEST(BlockCacheTest, ReusesReturnedBlocks) {
  Source source(1 << 20);
  BlockCache cache(source.get(), source.give_back());
  ASSERT_OK_AND_ASSIGN(void* const a, cache.Take(1000));
  ASSERT_OK_AND_ASSIGN(void* const b, cache.Take(1000));
  EXPECT_NE(a, b);
  cache.Return(a);
  ASSERT_OK_AND_ASSIGN(void* const other, cache.Take(5000));
  EXPECT_NE(other, a);
  EXPECT_EQ(cache.Take(1001).value_or(nullptr), a);
  EXPECT_EQ(source.asked(), (std::vector<int64_t>{1024, 1024, 5120}));
  for (void* const block : {a, b, other}) cache.Return(block);
}

TEST(BlockCacheTest, ReturnsItsBlocksToTheSourceWhenMemoryIsExhausted) {
  Source source(4096);
  BlockCache cache(source.get(), source.give_back());
  ASSERT_OK_AND_ASSIGN(void* const a, cache.Take(2048));
  ASSERT_OK_AND_ASSIGN(void* const b, cache.Take(2048));
  EXPECT_THAT(cache.Take(1024),
              StatusIs(absl::StatusCode::kResourceExhausted, "no more"));
  EXPECT_EQ(source.asked().size(), 3u);
  cache.Return(a);
  ASSERT_OK_AND_ASSIGN(void* const c, cache.Take(1024));
  EXPECT_EQ(source.asked().size(), 5u);
  cache.Return(b);
  cache.Return(c);
}

TEST(BlockCacheTest, WhatWasNotTakenCannotBeReturned) {
  Source source(4096);
  BlockCache cache(source.get(), source.give_back());
  int other = 0;
  EXPECT_DEATH(cache.Return(&other), "returned memory that was not taken");
}

}  // namespace
}  // namespace coxswain
