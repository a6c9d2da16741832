#include "schedule/memory/rank_states.h"

#include <algorithm>
#include <cmath>

#include "base/mesh.h"
#include "schedule/memory/zero_limits.h"

namespace coxswain::memory {
namespace {

// Blocks of pinned memory, each of the largest slice of a bucket.
constexpr int64_t kOffloadBlocks = 4;

}  // namespace

Sharing Sharing::Of(const Configuration& configuration) {
  const int dp = configuration.mesh.extent("dp");
  const int shard = configuration.mesh.extent("shard");
  Sharing sharing;
  sharing.is_hybrid = configuration.zero > 0 && dp > 1 && shard > 1;
  sharing.sharers = sharing.is_hybrid ? shard : dp * shard;
  return sharing;
}

// Rajbhandari et al., arXiv:1910.02054, with p = g and o = (state) p; where
// the sums of a window lie is in docs/parallelism.md, "Memory of
// accumulation".
void SetStates(const Configuration& configuration,
               const OptimizerCosts& optimizer, const Sharing& sharing,
               int64_t element_bytes, int64_t largest, RankMemory* rank) {
  const int64_t all = rank->elements * element_bytes;
  const int64_t state = all * optimizer.state;
  const int64_t bucket = std::min(
      all, std::max(configuration.bucket_bytes, largest * element_bytes));
  const int zero = configuration.zero;
  const bool window = configuration.accumulation > 1;
  const bool each = window && configuration.sync_each_batch;
  rank->parameters = all;
  rank->buckets = all;
  if (zero == 0) {
    // From one step to the next .grad keeps its memory; and averages are set
    // aside.
    rank->gradients =
        (configuration.gradient_as_bucket_view ? 0 : all) + (each ? all : 0);
  }
  if (zero == 1 && each) rank->gradients = sharing.Slice(all);
  if (zero == 2) {
    rank->buckets = std::min(all, kBucketsInFlight * bucket);
    rank->gradients = sharing.Slice(all) + (window && !each ? all : 0);
  }
  rank->optimizer = zero > 0 ? sharing.Slice(state) : state;
  if (configuration.offload) {
    rank->host = sharing.Slice(all) + rank->optimizer +
                 kOffloadBlocks * sharing.Slice(bucket);
    rank->optimizer = 0;
  }
  const auto errors = static_cast<int64_t>(std::llround(
      configuration.hook_bytes * static_cast<double>(rank->elements)));
  rank->hook = sharing.is_hybrid ? sharing.Slice(errors) : errors;
}

}  // namespace coxswain::memory
