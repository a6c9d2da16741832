#ifndef COXSWAIN_SCHEDULE_MEMORY_RANK_MODEL_H_
#define COXSWAIN_SCHEDULE_MEMORY_RANK_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "schedule/memory/model.h"

namespace coxswain::memory {

// A layer as one rank along tp has it; see Layer.
struct RankLayer {
  std::vector<int64_t> tensors;  // the elements of each trained one
  int64_t activations = 0;
  int64_t output = 0;
  int64_t working = 0;

  int64_t elements() const;
};

struct RankModel {
  int64_t element_bytes = 4;
  int64_t input = 0;
  std::vector<RankLayer> layers;
};

// INVALID_ARGUMENT: so many ranks along tp cannot divide the model: nothing in
// it is divided, or something has fewer parts, which each rank needs one of.
absl::Status CheckDivisible(const Model& model, int tp);

// Returns the first ones of so many ranks along tp that are alike: each has
// what those up to the next one have.
std::vector<int> FirstsOf(const Model& model, int tp);

// Returns what rank `index` of `tp` has; of parameters that do not come out
// even, the first ranks have one part more. `sequence`: with sequence
// parallelism.
RankModel RankModelOf(const Model& model, int tp, int index, bool sequence);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_RANK_MODEL_H_
