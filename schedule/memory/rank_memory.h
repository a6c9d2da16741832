#ifndef COXSWAIN_SCHEDULE_MEMORY_RANK_MEMORY_H_
#define COXSWAIN_SCHEDULE_MEMORY_RANK_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/memory/configuration.h"
#include "schedule/memory/model.h"

namespace coxswain::memory {

// What a rank holds when it holds the most: in the backward passes, or in the
// optimizer's step. In bytes.
struct RankMemory {
  int pp = 0;  // its coordinate
  // Along tp: of the first of so many neighbours that are alike. Ranks that
  // share these are alike.
  int tp = 0;
  int tp_ranks = 1;
  std::string stages;  // "0", "0,2"
  std::string layers;  // "0-3", "0-1,4-5"
  int64_t elements = 0;

  int64_t parameters = 0;
  int64_t gradients = 0;  // beside those in the buckets
  int64_t buckets = 0;
  int64_t optimizer = 0;  // its state
  int64_t hook = 0;
  int64_t activations = 0;  // and the first stage's inputs
  // Between stages: inputs that were received and are kept for the backward
  // pass, messages that wait, and the channels' slots.
  int64_t messages = 0;
  int64_t working = 0;
  bool in_step = false;  // the most is in the optimizer's step

  // In the memory of the host, with offload.
  int64_t host = 0;

  int64_t total() const {
    return parameters + gradients + buckets + optimizer + hook + activations +
           messages + working;
  }
};

struct Estimate {
  std::string pipeline;  // in its one form; empty: none
  int ranks = 1;
  int ranks_of_each = 1;          // that share the coordinates pp and tp
  int sharers = 1;                // ranks that share a state, with zero
  std::vector<RankMemory> by_pp;  // by the coordinates pp, and then tp
  int largest = 0;                // of them

  // Returns that of ranks with these coordinates.
  const RankMemory& Of(int pp, int tp) const;
};

// Returns what each rank holds. INVALID_ARGUMENT and UNIMPLEMENTED: it cannot
// be trained so, with the reason that training gives.
absl::StatusOr<Estimate> EstimateMemory(const Model& model,
                                        const Configuration& configuration);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_RANK_MEMORY_H_
