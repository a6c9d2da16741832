#include "client/data/sampler.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace coxswain {
namespace {

constexpr uint64_t kRounds = 8;
// So that the product of a batch size and a world size fits.
constexpr int64_t kMaxSamples = int64_t{1} << 40;
constexpr int kMaxWorldSize = 1 << 20;

// Where a keyed permutation of [0, size) sends `index`: a Feistel network over
// the next even number of bits, walked along its cycle until it is back in
// range (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
// Needs no memory, so a job may begin anywhere in a data set of any size.
int64_t Permute(uint64_t key, int64_t index, int64_t size) {
  int half = 1;
  while (half < 31 && (int64_t{1} << (2 * half)) < size) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = CounterRandom(key, round).Bits(right) & mask;
      const uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    value = left << half | right;
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

absl::Status Check(const SamplerOptions& options, const SamplerState& state) {
  if (options.dataset_size < 1 || options.dataset_size > kMaxSamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data set has ", options.dataset_size, " samples"));
  }
  if (options.world_size < 1 || options.world_size > kMaxWorldSize ||
      options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank,
                                                   " of ", options.world_size,
                                                   " ranks is not possible"));
  }
  if (options.batch_size < 1 || options.batch_size > options.dataset_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_size must be from 1 to the data set's size ",
                     options.dataset_size, ", got ", options.batch_size));
  }
  if (state.epoch < 0 || state.position < 0 ||
      state.position > options.dataset_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resume at position ", state.position, " of ",
                     options.dataset_size, " in epoch ", state.epoch));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShardedSampler> ShardedSampler::Create(
    const SamplerOptions& options, const SamplerState& state) {
  if (auto status = Check(options, state); !status.ok()) return status;
  return ShardedSampler(options, state);
}

int64_t ShardedSampler::SampleAt(int64_t position) const {
  // Only padding goes past the end: on to the first samples.
  position %= options_.dataset_size;
  if (!options_.shuffle) return position;
  const uint64_t key = CounterRandom(state_.seed, StableHash("sampler"))
                           .Bits(static_cast<uint64_t>(state_.epoch));
  return Permute(key, position, options_.dataset_size);
}

int64_t ShardedSampler::batches_left() const {
  const int64_t samples = options_.dataset_size - state_.position;
  const int64_t global = options_.batch_size * options_.world_size;
  const bool last_short = samples % global != 0;
  return samples / global +
         (last_short && options_.even != EvenBatches::kDrop ? 1 : 0);
}

std::optional<std::vector<int64_t>> ShardedSampler::NextBatch() {
  if (batches_left() == 0) return std::nullopt;
  const int64_t world = options_.world_size;
  const int64_t rank = options_.rank;
  const int64_t left = options_.dataset_size - state_.position;
  int64_t size = options_.batch_size;
  int64_t begin = state_.position + rank * size;
  if (left < size * world && options_.even == EvenBatches::kUneven) {
    const int64_t share = left / world;
    const int64_t longer = left % world;  // ranks that get one more
    size = share + (rank < longer ? 1 : 0);
    begin = state_.position + rank * share + std::min(rank, longer);
  }
  std::vector<int64_t> batch;
  batch.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) batch.push_back(SampleAt(begin + i));
  state_.position += std::min(left, options_.batch_size * options_.world_size);
  return batch;
}

void ShardedSampler::NextEpoch() {
  ++state_.epoch;
  state_.position = 0;
}

}  // namespace coxswain
