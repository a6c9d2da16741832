#ifndef COXSWAIN_CLIENT_SCHEDULE_JOB_PLAN_H_
#define COXSWAIN_CLIENT_SCHEDULE_JOB_PLAN_H_

#include <cstdint>
#include <string>

#include "base/schedule_terms.h"

namespace coxswain {

// When gradients are exchanged, and how: decided by the coordinator.
struct JobPlan {
  int64_t version = 0;
  int accumulation_steps = 1;
  std::string hook;
  int64_t compression_start_step = -1;  // -1: the hook's own start_step
  ScheduleTerms terms;
  // Micro-batches of all ranks in one step when the plan was made; 0: not
  // known.
  int64_t global_micro_batches = 0;

  // Micro-batches that this rank sums up in one step.
  int WindowOf(int rank, int world_size) const {
    if (terms.on_resize == OnResize::kKeepLocalBatch ||
        global_micro_batches == 0) {
      return accumulation_steps;
    }
    return MicroBatchShare(global_micro_batches, world_size, rank);
  }

  // Whether each step begins with a header exchange, in which the ranks tell
  // each other their weights: gradients cannot be averaged without it.
  bool needs_header(int world_size) const {
    return terms.weighting != Weighting::kMean ||
           terms.uneven_data != UnevenData::kRefuse ||
           WindowOf(0, world_size) != WindowOf(world_size - 1, world_size);
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SCHEDULE_JOB_PLAN_H_
