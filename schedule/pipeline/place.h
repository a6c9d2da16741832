#ifndef COXSWAIN_SCHEDULE_PIPELINE_PLACE_H_
#define COXSWAIN_SCHEDULE_PIPELINE_PLACE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace coxswain {

// The median times of the last passes of a stage, in seconds; 0: there was none
// of this kind yet.
struct StagePasses {
  int stage = 0;
  double forward = 0;
  double backward = 0;  // whole
  double backward_input = 0;
  double backward_weight = 0;

  friend bool operator==(const StagePasses& a, const StagePasses& b) {
    return a.stage == b.stage && a.forward == b.forward &&
           a.backward == b.backward && a.backward_input == b.backward_input &&
           a.backward_weight == b.backward_weight;
  }
};

// Where a rank of a pipeline is in its list of actions, as its heartbeats
// report it.
struct PipelinePlace {
  // More stages than these are left out of `passes`.
  static constexpr size_t kMaxStages = 16;

  int64_t step = -1;  // counted from 0 in this generation; -1: before the first
  int action = 0;     // in the list; as long as this is: between steps
  int micro_batches = 0;            // of the schedule that it runs
  absl::Duration in_it;             // since when it is in the action
  std::vector<StagePasses> passes;  // of this rank's stages
  uint64_t schedule = 0;            // its Schedule::Hash; 0: not known

  // Returns whether it is one that a rank can be in.
  bool Sensible() const {
    constexpr int64_t kMost = int64_t{1} << 40;
    constexpr double kMostSeconds = 1e9;
    const auto sensible = [](double seconds) {
      return std::isfinite(seconds) && seconds >= 0 && seconds <= kMostSeconds;
    };
    bool all = step >= -1 && step <= kMost && action >= 0 &&
               micro_batches >= 1 && in_it >= absl::ZeroDuration() &&
               sensible(absl::ToDoubleSeconds(in_it)) &&
               passes.size() <= kMaxStages;
    for (const StagePasses& one : passes) {
      all = all && one.stage >= 0 && sensible(one.forward) &&
            sensible(one.backward) && sensible(one.backward_input) &&
            sensible(one.backward_weight);
    }
    return all;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_SCHEDULE_PIPELINE_PLACE_H_
