#ifndef COXSWAIN_SCHEDULE_PLAN_H_
#define COXSWAIN_SCHEDULE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/schedule_terms.h"

namespace coxswain::schedule {

// Beyond this no program ever comes, and sums of two do not overflow.
constexpr int64_t kMaxStep = int64_t{1} << 53;

// The spec of a hook.
constexpr size_t kMaxHookBytes = 4096;

// When gradients are exchanged, and with which hook. Deterministic: a worker
// that knows the plan asks nothing while it trains.
struct Plan {
  int64_t version = 0;  // from 1; 0 is no plan
  int accumulation_steps = 1;
  std::string hook;
  int64_t compression_start_step = -1;  // -1: the hook's own option
  ScheduleTerms terms;
  // Micro-batches of all ranks in one step when the plan was made; 0: not
  // known.
  int64_t global_micro_batches = 0;
  // In force from this step of the running generation; kWithNextGeneration;
  // kAtNextStep.
  int64_t at_step = 0;
  static constexpr int64_t kWithNextGeneration = 0;
  static constexpr int64_t kAtNextStep = -1;

  // Whether the content is the same, whatever the version, and wherever it
  // begins.
  bool SameContent(const Plan& other) const {
    return accumulation_steps == other.accumulation_steps &&
           hook == other.hook &&
           compression_start_step == other.compression_start_step &&
           terms == other.terms;
  }

  // Micro-batches that this rank sums up in one step.
  int WindowOf(int rank, int world_size) const {
    if (terms.on_resize == OnResize::kKeepLocalBatch ||
        global_micro_batches == 0) {
      return accumulation_steps;
    }
    return MicroBatchShare(global_micro_batches, world_size, rank);
  }
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_PLAN_H_
