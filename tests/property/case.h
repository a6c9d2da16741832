#ifndef COXSWAIN_TESTS_PROPERTY_CASE_H_
#define COXSWAIN_TESTS_PROPERTY_CASE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "client/device/tensor.h"
#include "client/reduce/bucket_layout.h"

namespace coxswain::property {

// A training run with a random model, as plain data: what is run, checked,
// shrunk and printed. All numbers in it (parameters, inputs) are a function of
// `seed` and of what they belong to, so that they stay when something else is
// taken away.

// How a parameter lies in memory.
enum class Memory { kDense, kTransposed, kGaps, kChannelsLast };

// A part of the loss. Those with two parameters use `a` and `b`; where the
// shapes do not suit a kind, it is kLinear.
enum class TermKind {
  kLinear,       // (C a).sum()
  kSquare,       // (C a a).sum()
  kTwice,        // (C a).sum() + (D sin(a)).sum()
  kSum,          // a.sum(): its gradient has strides of 0
  kSlice,        // only the first row is reached
  kTransposed,   // (C a^T).sum()
  kMatmul,       // tanh(X a).sum()
  kConvolution,  // tanh(conv2d(X, a)).sum()
  kProduct,      // tanh(a.sum()) (C b).sum()
  kChain,        // tanh(tanh(X a) R b).sum()
};

struct Term {
  TermKind kind = TermKind::kLinear;
  int a = 0;  // indices of Case::parameters
  int b = 0;
};

inline constexpr int kAlways = std::numeric_limits<int>::max();

struct ParameterCase {
  int id = 0;  // names it, "p<id>"
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat64;
  Memory memory = Memory::kDense;
  bool shared = false;  // registered under a second name, too
  // The steps in which it is trainable; frozen in the others.
  int from = 0;
  int until = kAlways;
};

// What the caller does to gradients between steps. kShift: adds a number of
// the rank's own, so that ranks go on from different gradients.
enum class ZeroGrad { kNone, kZero, kKeep, kShift };

// How a step is ended: by Backward, or by Synchronize and FinishStep.
enum class Ending { kBackward, kByHand, kDropped };

struct StepCase {
  // The terms, bit by bit, of each rank's micro-batches. A rank that has none
  // is out of data.
  std::vector<std::vector<uint32_t>> uses;
  Ending ending = Ending::kBackward;
  ZeroGrad zero = ZeroGrad::kNone;  // after the step
  // Between micro-batches, before the one of this number: another hook and
  // other bucket sizes, unless empty and 0.
  int change_before = 0;
  std::string hook;
  bool carry_state = false;
  BucketPlanOptions buckets = {0, 0};
};

struct Case {
  uint64_t seed = 0;
  int world = 1;
  std::vector<ParameterCase> parameters;
  std::vector<Term> terms;
  std::vector<StepCase> steps;

  std::string hook = "allreduce";
  BucketPlanOptions buckets;
  // Above 0: micro-batches are declared, so many to a window; a window that is
  // shorter is flushed. 0: all but the last one are in a NoSync scope.
  int accumulate = 0;
  bool view = false;
  bool rebuild = true;
  bool find_unused = false;
  bool uneven = false;
  bool static_graph = false;
  bool overlapped = false;  // with an optimizer for each parameter
  bool statistics = false;
  double max_norm = 0;
  bool buffers = false;
  bool broadcast_buffers = true;
};

// Returns a valid case, the same for the same seed.
Case RandomCase(uint64_t seed);

// Returns whether the case is valid: no indices out of range, only combinations
// that the contract of DistributedDataParallel allows.
bool IsValid(const Case& one);

// Returns a rough size, for tests of shrinking: what a reader has to look at.
int64_t SizeOfCase(const Case& one);

// Returns whether the rank's window ends by Flush.
bool Flushes(const Case& one, const StepCase& step, int rank);
// Returns whether gradients of one step are kept for the next.
bool Keeps(const StepCase& step);
bool IsTrainable(const ParameterCase& parameter, int step);

// Returns statements that make `one`, for a test.
std::string ToText(const Case& one);

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_CASE_H_
