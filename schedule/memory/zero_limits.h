#ifndef COXSWAIN_SCHEDULE_MEMORY_ZERO_LIMITS_H_
#define COXSWAIN_SCHEDULE_MEMORY_ZERO_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace coxswain::memory {

// Buckets that have memory at a time, with zero=2 (docs/parallelism.md).
inline constexpr int64_t kBucketsInFlight = 3;

// INVALID_ARGUMENT: there is no such stage of ZeRO; UNIMPLEMENTED: the third
// one, with what there is in its place.
absl::Status CheckZeroStage(int zero);

// A pipeline's rank, as far as gradients go.
struct WindowGradients {
  std::string rank;    // "pp 0"
  int64_t bytes = 0;   // of its gradients, whole
  int64_t bucket = 0;  // bytes of the largest bucket
  int sharers = 0;     // ranks with a slice each; 0: not known yet
  int micro_batches = 1;
};

// Returns why zero=2 is refused with a pipeline: what the rank would hold with
// it and with zero=1, and what it would send if it exchanged each micro-batch,
// in place of its window. INVALID_ARGUMENT. `force` is the option that lets it
// run all the same.
absl::Status RefuseZeroOfWindow(const WindowGradients& gradients,
                                const std::string& force);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_ZERO_LIMITS_H_
