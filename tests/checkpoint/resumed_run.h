#ifndef COXSWAIN_TESTS_CHECKPOINT_RESUMED_RUN_H_
#define COXSWAIN_TESTS_CHECKPOINT_RESUMED_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/device/tensor.h"
#include "client/reduce/hook_state.h"
#include "tests/checkpoint/replay.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {

// What the distance between two runs is relative to.
enum class NormOf { kTensor, kBucket, kWhole };

// A training that is interrupted and resumed on other numbers of ranks.
struct ResumedRun {
  std::string spec;
  DType dtype = DType::kFloat32;
  // Ranks before the first checkpoint, after it, after the next one...
  std::vector<int> sizes;
  // Whether it is interrupted again before it makes a step, up to the last
  // checkpoint. Otherwise it makes kStepsAfter steps in between.
  bool at_once = false;
  // Whether buckets have another size after each checkpoint.
  bool other_buckets = false;
  NormOf norm = NormOf::kTensor;
  Signal signal = Signal::kShared;
};

// Steps before the first checkpoint: the errors are what they will be.
inline constexpr int64_t kStepsBefore = 12;
// Steps that are compared after a checkpoint.
inline constexpr int64_t kStepsAfter = 10;

// How far a run that was resumed from a checkpoint is from the run that saved
// it and went on: the largest distance of a norm.
struct Distance {
  double first = 0;  // of the averages of the first step
  double later = 0;  // and of any step up to the tenth
  // Of all that has been sent since, and what is left unsent, together: what
  // both runs must agree on even where they send it in another order.
  double in_sum = 0;
};

// Makes `distance` the larger one, in each of its numbers.
void TakeLarger(const Distance& other, Distance& distance);

// Saves what the ranks of a world have after a step, and loads it.
using SaveAndLoad = std::function<HookState(HookWorld& world, int64_t step)>;

// Returns the largest distance over the checkpoints after which steps are made.
Distance Resume(const ResumedRun& run, const SaveAndLoad& reload);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CHECKPOINT_RESUMED_RUN_H_
