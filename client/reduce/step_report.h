#ifndef COXSWAIN_CLIENT_REDUCE_STEP_REPORT_H_
#define COXSWAIN_CLIENT_REDUCE_STEP_REPORT_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace coxswain {

// When the steps of one bucket's exchange happened, by the injected clock, in
// this order.
struct BucketTiming {
  absl::Time ready;       // the last gradient was marked
  absl::Time launched;    // the hook began
  absl::Time compressed;  // its first collective was started
  absl::Time exchanged;   // its last collective had ended
  absl::Time done;        // the average stood, and copies were made
  // In between, the exchange thread's time ...
  absl::Duration in_hook;  // ... within the hook, computing
  absl::Duration waited;   // ... waiting for this bucket's collectives

  int64_t gradient_bytes = 0;  // of the bucket
  int64_t payload_bytes = 0;   // that the hook handed to collectives
};

// What happened in one step.
struct StepReport {
  int64_t step = 0;  // the hook's count of committed steps when it began
  absl::Time begun;
  absl::Time finished;    // Finish returned
  absl::Duration waited;  // how long Finish waited for the exchange
  std::vector<BucketTiming> buckets;

  // With ReducerOptions::uneven_inputs: the sum of the ranks' weights and how
  // many are above zero. Otherwise world size and world size.
  double total_weight = 0;
  int live_ranks = 0;
  int first_live_rank = 0;
  // Ranks that had data for the step, also if its weights sum up to zero.
  int ranks_with_data = 0;
  // Ranks whose data has ended, with this step or before it.
  int ended_ranks = 0;
  // All weights were zero, or `ended`: nothing was exchanged.
  bool empty = false;
  // With ReducerOptions::end_at_first: a rank had no data.
  bool ended = false;

  // With ReducerOptions::statistics, of the averaged gradients, before they
  // are clipped, and the same bits on all ranks.
  double gradient_norm = 0;  // 2-norm over all of them
  int64_t non_finite = 0;    // elements that are infinite or not a number
  // The factor by which the gradients were clipped to ReducerOptions::max_norm;
  // 1 also if non_finite > 0.
  double clip_scale = 1;
};

// The memory that buckets hold.
struct BucketMemoryUse {
  int64_t bytes = 0;  // now; a pool's also where no gradients are in it
  int64_t peak_bytes = 0;
  int64_t allocations = 0;  // that were made for it
};

// Sums over a reducer's life.
struct ReducerTotals {
  int64_t steps = 0;  // finished
  int64_t gradient_bytes = 0;
  int64_t payload_bytes = 0;
  absl::Duration in_hook;
  absl::Duration in_collectives;  // waited for them, on the exchange thread
  absl::Duration in_finish;       // the training thread waited in Finish
  absl::Duration in_gate;  // ... and in BeginStep and Decide, for the gate
  // At most the last and the next layout's, while buckets are divided anew.
  BucketMemoryUse bucket_memory;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_STEP_REPORT_H_
