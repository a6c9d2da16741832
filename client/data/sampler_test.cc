#include "client/data/sampler.h"

#include <cmath>
#include <map>
#include <numeric>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

std::vector<ShardedSampler> MakeRanks(SamplerOptions options,
                                      const SamplerState& state) {
  std::vector<ShardedSampler> ranks;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    ranks.push_back(ShardedSampler::Create(options, state).value());
  }
  return ranks;
}

// Takes up to `batches` from all ranks; counts how often each sample comes.
void Take(std::vector<ShardedSampler>* ranks, int64_t batches,
          std::map<int64_t, int>* counts) {
  for (; batches > 0; --batches) {
    const bool over = ranks->front().batches_left() == 0;
    for (ShardedSampler& rank : *ranks) {
      const auto batch = rank.NextBatch();
      ASSERT_EQ(batch.has_value(), !over);
      if (!over) {
        for (const int64_t sample : *batch) ++(*counts)[sample];
      }
      EXPECT_EQ(rank.state().position, ranks->front().state().position);
    }
    if (over) return;
  }
}

// Sizes, batches and worlds with every kind of remainder.
template <typename Property>
void ForManyOptions(EvenBatches even, Property property) {
  for (const int64_t size : {1, 2, 7, 64, 101, 1000}) {
    for (const int64_t batch : {1, 3, 8}) {
      for (const int world : {1, 2, 3, 5}) {
        if (batch > size) continue;
        SamplerOptions options;
        options.dataset_size = size;
        options.batch_size = batch;
        options.world_size = world;
        options.even = even;
        SCOPED_TRACE(testing::Message() << size << " samples, batch " << batch
                                        << ", world " << world);
        property(options);
      }
    }
  }
}

void ExpectEachOnce(const std::map<int64_t, int>& counts, int64_t size) {
  ASSERT_EQ(static_cast<int64_t>(counts.size()), size);
  EXPECT_EQ(counts.begin()->first, 0);
  EXPECT_EQ(counts.rbegin()->first, size - 1);
  for (const auto& [sample, count] : counts) EXPECT_EQ(count, 1) << sample;
}

TEST(ShardedSamplerTest, UnevenBatchesHaveEverySampleExactlyOnce) {
  ForManyOptions(EvenBatches::kUneven, [](const SamplerOptions& options) {
    auto ranks = MakeRanks(options, {/*epoch=*/3, /*seed=*/5, 0});
    std::map<int64_t, int> counts;
    Take(&ranks, options.dataset_size + 1, &counts);
    ExpectEachOnce(counts, options.dataset_size);
  });
}

TEST(ShardedSamplerTest, EverySampleExactlyOnceAcrossAChangeOfWorldSize) {
  ForManyOptions(EvenBatches::kUneven, [](SamplerOptions options) {
    for (const int new_world : {1, 2, 4}) {
      std::map<int64_t, int> counts;
      auto before = MakeRanks(options, {/*epoch=*/1, /*seed=*/9, 0});
      Take(&before, 2, &counts);
      SamplerOptions changed = options;
      changed.world_size = new_world;
      auto after = MakeRanks(changed, before.front().state());
      Take(&after, options.dataset_size + 1, &counts);
      ExpectEachOnce(counts, options.dataset_size);
    }
  });
}

TEST(ShardedSamplerTest, PaddedBatchesAreFullAndRepeatTheFirstSamples) {
  ForManyOptions(EvenBatches::kPad, [](const SamplerOptions& options) {
    auto ranks = MakeRanks(options, {0, 7, 0});
    std::map<int64_t, int> counts;
    Take(&ranks, options.dataset_size + 1, &counts);
    EXPECT_EQ(static_cast<int64_t>(counts.size()), options.dataset_size);
    int64_t total = 0;
    for (const auto& [sample, count] : counts) total += count;
    const int64_t global = options.batch_size * options.world_size;
    EXPECT_EQ(total % global, 0);
    EXPECT_LT(total - options.dataset_size, global);
  });
}

TEST(ShardedSamplerTest, DroppingLeavesOutLessThanOneGlobalBatch) {
  ForManyOptions(EvenBatches::kDrop, [](const SamplerOptions& options) {
    auto ranks = MakeRanks(options, {0, 7, 0});
    std::map<int64_t, int> counts;
    Take(&ranks, options.dataset_size + 1, &counts);
    for (const auto& [sample, count] : counts) EXPECT_EQ(count, 1) << sample;
    const int64_t global = options.batch_size * options.world_size;
    EXPECT_EQ(static_cast<int64_t>(counts.size()),
              options.dataset_size / global * global);
  });
}

TEST(ShardedSamplerTest, OneRankOfABigBatchSeesWhatTwoRanksSee) {
  SamplerOptions options;
  options.dataset_size = 60;
  options.batch_size = 6;
  auto one = MakeRanks(options, {0, 1, 0});
  options.batch_size = 3;
  options.world_size = 2;
  auto two = MakeRanks(options, {0, 1, 0});
  for (int i = 0; i < 10; ++i) {
    auto both = *two[0].NextBatch();
    const auto second = *two[1].NextBatch();
    both.insert(both.end(), second.begin(), second.end());
    EXPECT_EQ(*one[0].NextBatch(), both);
  }
}

TEST(ShardedSamplerTest, TheOrderDependsOnSeedAndEpochOnly) {
  SamplerOptions options;
  options.dataset_size = 1000;
  options.batch_size = 1000;
  const auto order = [&](int64_t epoch, uint64_t seed) {
    return *ShardedSampler::Create(options, {epoch, seed, 0})->NextBatch();
  };
  EXPECT_EQ(order(2, 4), order(2, 4));
  EXPECT_NE(order(2, 4), order(3, 4));
  EXPECT_NE(order(2, 4), order(2, 5));

  ASSERT_OK_AND_ASSIGN(ShardedSampler sampler,
                       ShardedSampler::Create(options, {2, 4, 0}));
  sampler.NextBatch();
  EXPECT_EQ(sampler.NextBatch(), std::nullopt);
  sampler.NextEpoch();
  EXPECT_EQ(*sampler.NextBatch(), order(3, 4));
}

// A sample's place must not depend on its number: for each tenth of the order,
// the mean number is that of the whole to four standard deviations.
TEST(ShardedSamplerTest, ShufflingMixesTheWholeDataSet) {
  SamplerOptions options;
  options.dataset_size = 10000;
  options.batch_size = 1000;
  ASSERT_OK_AND_ASSIGN(ShardedSampler sampler,
                       ShardedSampler::Create(options, {0, 1, 0}));
  for (int tenth = 0; tenth < 10; ++tenth) {
    const auto batch = *sampler.NextBatch();
    const double mean = std::accumulate(batch.begin(), batch.end(), 0.0) / 1000;
    EXPECT_NEAR(mean, 5000, 4 * 10000 / std::sqrt(12.0 * 1000));
  }
}

TEST(ShardedSamplerTest, WithoutShuffleTheOrderIsThatOfTheDataSet) {
  SamplerOptions options;
  options.dataset_size = 6;
  options.batch_size = 3;
  options.shuffle = false;
  ASSERT_OK_AND_ASSIGN(ShardedSampler sampler,
                       ShardedSampler::Create(options, {0, 1, 3}));
  EXPECT_THAT(*sampler.NextBatch(), testing::ElementsAre(3, 4, 5));
}

TEST(ShardedSamplerTest, RefusesInvalidOptions) {
  SamplerOptions options;
  EXPECT_THAT(
      ShardedSampler::Create(options, {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 samples")));
  options.dataset_size = 10;
  options.batch_size = 11;
  EXPECT_THAT(
      ShardedSampler::Create(options, {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch_size")));
  options.batch_size = 2;
  EXPECT_THAT(ShardedSampler::Create(options, {0, 0, 11}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("position 11 of 10")));
  options.rank = 1;
  EXPECT_THAT(
      ShardedSampler::Create(options, {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 of 1")));
}

}  // namespace
}  // namespace coxswain
