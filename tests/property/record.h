#ifndef COXSWAIN_TESTS_PROPERTY_RECORD_H_
#define COXSWAIN_TESTS_PROPERTY_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook_state.h"
#include "client/reduce/step_report.h"

namespace coxswain::property {

// What one rank saw in a run of a case, for the oracle.

// A tensor's elements in the order of its indices, or nothing.
struct Elements {
  bool defined = false;
  std::vector<double> values;
  // As they are in memory, but dense: equal bits are equal bytes.
  std::string bytes;
};

// The state of a hook between two steps; empty for hooks without any.
struct SavedState {
  int64_t step = 0;
  HookState shard;  // saved with all ranks
  HookState alone;  // saved as the only rank: with its own errors
};

struct RankStep {
  std::string hook;  // the spec in use
  // What the rank's gradients count, and what its sums were divided by.
  double weight = 1;
  double divisor = 1;
  std::vector<ParameterSpec> parameters;  // as the reducer has them
  std::vector<int> numbers;               // of these in the case
  std::vector<std::vector<int>> buckets;  // of these; numbers in the case
  bool frozen = false;
  // By parameter of the case:
  std::vector<Elements> values;    // at the start of the step
  std::vector<Elements> expected;  // gradients before it, by the twin's books
  std::vector<Elements> before;    // and as they are
  std::vector<Elements> own;       // what the rank contributes: the twin's sums
  std::vector<bool> used;          // some micro-batch reached it
  std::vector<Elements> after;     // gradients once the step is finished
  std::vector<Elements> moved;     // values, by overlapped optimizers only
  Elements buffer_set, buffer;     // before the step, after it
  SavedState state_before, state_after;
  // With carry_state, around the change of hooks.
  bool carried = false;
  SavedState carried_from, carried_to;
  StepReport report;
};

struct RankRecord {
  absl::Status status;  // the first error, and what was being done
  std::vector<RankStep> steps;
};

// By rank.
using Record = std::vector<RankRecord>;

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_RECORD_H_
