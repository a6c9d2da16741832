#ifndef COXSWAIN_TESTS_PROPERTY_STRESS_PLAN_H_
#define COXSWAIN_TESTS_PROPERTY_STRESS_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "client/device/tensor.h"
#include "client/reduce/bucket.h"
#include "client/reduce/reducer.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {

// What a stress test does, as a pure function of its seed: the same on all
// ranks, and in every run. Only the threads' timing differs.

// Numbers drawn one after the other. One thread.
class Draw {
 public:
  Draw(uint64_t seed, uint64_t stream) : random_(seed, stream) {}

  int Below(int bound) {
    return static_cast<int>(random_.Bits(next_++) %
                            static_cast<uint64_t>(bound));
  }
  bool OneIn(int times) { return Below(times) == 0; }
  template <typename T>
  T Of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(
        Below(static_cast<int>(choices.size())))];
  }

 private:
  const CounterRandom random_;
  uint64_t next_ = 0;
};

// What breaks the step of a rank.
enum class Trouble {
  kNone,
  kAbort,              // Reducer::Abort, by another thread where possible
  kAbortCommunicator,  // behind the reducer's back
  kDestroy,            // the reducer, by its own thread
  kMarkTwice,
  kFailCollective,  // the `count`-th of the communicator
  kFailHook,        // the `count`-th call of its exchanges
  kFailOnAverage,
  kTimeout,  // next to nothing, while the exchange is in the `count`-th call
  kAbsent,   // the rank does not come, and its peers' time is up
};

// When, for the first four.
enum class Moment {
  kBeforeBegin,
  kAfterBegin,
  kAfterMark,  // the `count`-th
  kBeforeFinish,
  kInFinish,  // or about then
  kAfterFinish,
  kInCommit,      // likewise; the layout changes there after the first step
  kInChange,      // likewise: ChangeBuckets or BroadcastFromRoot
  kInCollective,  // while the `count`-th of the communicator is held up
};

struct Sabotage {
  Trouble trouble = Trouble::kNone;
  Moment moment = Moment::kBeforeBegin;
  int step = 0;
  int count = 0;

  std::string ToString() const;
};

// A number of generations with the same ranks and the same hook objects.
struct FleetPlan {
  uint64_t seed = 0;
  int world_size = 2;
  std::string hook;
  bool tcp = false;  // or in_process
  DType dtype = DType::kFloat32;
  int generations = 8;

  std::string ToString() const;
};
FleetPlan PlanFleet(uint64_t seed);

// The life of one communicator and of its ranks' reducers.
struct GenerationPlan {
  uint64_t key = 0;  // of its random numbers
  int number = 0;
  int world_size = 0;
  // Without sabotage all steps are taken; with it, until all is broken.
  int steps = 0;
  std::vector<Sabotage> sabotage;  // by rank
  ReducerOptions options;          // without callbacks
  bool on_average = false;
  int marking_threads = 1;

  bool sabotaged() const;
  int saboteurs() const;
  bool any(Trouble trouble) const;
  // Returns the first step in which something goes wrong.
  int first_trouble() const;
  std::string ToString() const;
};
GenerationPlan PlanGeneration(const FleetPlan& fleet, int number);

// What a rank does in a step.
struct MarkPlan {
  enum class How { kInView, kOutside, kOutsideWithCopyBack };
  int parameter = 0;
  How how = How::kInView;
  bool used = true;
};
struct StepPlan {
  double weight = 1;
  double share = 1;             // of the average
  std::vector<MarkPlan> marks;  // in this order; the others are missing
  bool change_buckets = false;  // before the step
  BucketPlanOptions buckets;
  int broadcast_root = -1;  // before the step; -1: no broadcast
};
StepPlan PlanStep(const GenerationPlan& generation, int parameters, int rank,
                  int step);

// Returns a rank's gradients in a step: multiples of 1/64, so that sums are
// exact.
Gradients StressGradients(const std::vector<ParameterSpec>& parameters,
                          const GenerationPlan& generation, int rank, int step);
// Returns what the hook sees of them: zeros where nothing is marked.
Gradients Contribution(const std::vector<ParameterSpec>& parameters,
                       const GenerationPlan& generation, int rank, int step);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_PROPERTY_STRESS_PLAN_H_
