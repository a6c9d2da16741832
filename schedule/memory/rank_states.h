#ifndef COXSWAIN_SCHEDULE_MEMORY_RANK_STATES_H_
#define COXSWAIN_SCHEDULE_MEMORY_RANK_STATES_H_

#include <cstdint>

#include "schedule/memory/configuration.h"
#include "schedule/memory/rank_memory.h"

namespace coxswain::memory {

// How the ranks of one part of the model share its state.
struct Sharing {
  int sharers = 1;         // ranks that share a state
  bool is_hybrid = false;  // docs/parallelism.md, "Hybrid sharding"

  static Sharing Of(const Configuration& configuration);
  // Returns what each of them has of so many bytes.
  int64_t Slice(int64_t bytes) const { return (bytes + sharers - 1) / sharers; }
};

// Sets what a rank with these elements keeps between its passes: parameters,
// gradients, buckets, and what optimizer and hook keep. `largest` is its
// largest tensor, in elements.
void SetStates(const Configuration& configuration,
               const OptimizerCosts& optimizer, const Sharing& sharing,
               int64_t element_bytes, int64_t largest, RankMemory* rank);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_RANK_STATES_H_
