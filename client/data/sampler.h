#ifndef COXSWAIN_CLIENT_DATA_SAMPLER_H_
#define COXSWAIN_CLIENT_DATA_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace coxswain {

// What happens to the samples at an epoch's end that do not make a full batch
// for every rank. In each case all ranks take the same number of batches.
enum class EvenBatches {
  kPad,     // filled up with the first samples of the epoch, which so come
            // twice (what Accelerate does with even_batches=True)
  kDrop,    // left out
  kUneven,  // split over the ranks as evenly as they go, the first ranks get
            // one more: batches may be short, or even empty
};

struct SamplerOptions {
  int64_t dataset_size = 0;
  int64_t batch_size = 1;  // samples per rank
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  EvenBatches even = EvenBatches::kPad;
};

// Where a job is in its data. The same on all ranks, and independent of how
// many there are.
struct SamplerState {
  int64_t epoch = 0;
  uint64_t seed = 0;
  int64_t position = 0;  // samples that all ranks together have taken
};

// Distributes a data set's sample numbers over the ranks, each sample once per
// epoch (see EvenBatches for the end).
//
// The epoch's order is a permutation that depends on (seed, epoch) only. All
// ranks together take the next world_size x batch_size of it, each a run of
// batch_size in rank order. So a job that continues from the state of another
// one, on any number of ranks, takes the samples that are left.
//
// Threading: one thread at a time.
class ShardedSampler {
 public:
  // Fails with INVALID_ARGUMENT, naming the option that is out of range.
  static absl::StatusOr<ShardedSampler> Create(const SamplerOptions& options,
                                               const SamplerState& state);

  // Returns this rank's next batch, or nothing at the end of the epoch.
  std::optional<std::vector<int64_t>> NextBatch();

  // Returns the number of batches until the end of the epoch; the same on all
  // ranks.
  int64_t batches_left() const;

  // Goes to the start of the next epoch.
  void NextEpoch();

  const SamplerState& state() const { return state_; }

 private:
  ShardedSampler(const SamplerOptions& options, const SamplerState& state)
      : options_(options), state_(state) {}
  int64_t SampleAt(int64_t position) const;

  SamplerOptions options_;
  SamplerState state_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DATA_SAMPLER_H_
