#ifndef COXSWAIN_TESTS_PROPERTY_REDUCER_LIFE_H_
#define COXSWAIN_TESTS_PROPERTY_REDUCER_LIFE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/comm/held/held_communicator.h"
#include "client/reduce/hook_state.h"
#include "client/reduce/reducer.h"
#include "tests/conformance/hook_world.h"
#include "tests/property/brittle_hook.h"
#include "tests/property/stress_plan.h"

namespace coxswain {

// Counts events; others wait for a number of them. Thread-safe.
class Count {
 public:
  void Add();
  // Returns false if it takes too long, which no test expects.
  bool Await(int count);

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A step whose Finish was OK.
struct StepRecord {
  Gradients averages;
  std::vector<bool> unused;  // everywhere, by parameter
  StepReport report;
  bool committed = false;
};

struct LifeRecord {
  std::vector<StepRecord> steps;
  absl::Status error;                   // the reducer's, if it broke
  absl::StatusOr<HookState> state;      // saved at the end of a clean life
  std::vector<std::string> complaints;  // what must not be
};

// One rank in one generation: makes a reducer and trains with it, as planned,
// until it breaks or all steps are taken. Runs in a thread of its own, starts
// others, and has joined them in the end.
class ReducerLife {
 public:
  // All that is pointed to outlives it. `lives_over` is shared by the ranks of
  // the generation. `restored` replaces the hook's state if it is not null.
  ReducerLife(const GenerationPlan& plan, int rank,
              const std::vector<ParameterSpec>& parameters, BrittleHook* hook,
              std::unique_ptr<Communicator> communicator,
              const HookState* restored, Count* lives_over);

  LifeRecord Run();

 private:
  bool Start();
  void SabotageHook();
  void TrainOn();
  // Returns false at the end of the life.
  bool Change(int step);
  bool Step(int step);
  bool MarkAll(int step, const Gradients& values);
  bool Mark(const MarkPlan& mark, const std::vector<double>& values);
  // Reads what Finish yielded.
  void Record(int step, const Gradients& given);
  // Reads the average that was copied to memory outside, or what must still be
  // there.
  void ReadOutside(const MarkPlan& mark, const Gradients& given);
  void SaveState();
  // All methods return the first error.
  void CheckBroken();

  // Returns whether this is the step and the moment of the sabotage.
  bool Due(Moment moment, int step) const;
  // Sabotages if it is due, by this thread; returns false if the reducer has
  // been destroyed.
  bool At(Moment moment, int step);
  // Lets the saboteur's thread go if it is due.
  void Near(Moment moment, int step);
  void Act();
  void ActInCollective();
  // Complains unless it is an error of the broken reducer.
  bool Ok(const char* what, const absl::Status& status);
  void Complain(const std::string& text);

  const GenerationPlan& plan_;
  const int rank_;
  const std::vector<ParameterSpec>& parameters_;
  BrittleHook* const hook_;
  HeldCommunicator communicator_;
  const HookState* const restored_;
  Count* const lives_over_;
  const Sabotage sabotage_;
  std::unique_ptr<Reducer> reducer_;
  // Of parameters whose gradients are marked outside of their buckets.
  std::vector<std::string> outside_;
  std::thread saboteur_;
  Count near_;
  std::atomic<bool> over_{false};
  std::atomic<int> marked_{0};

  LifeRecord record_;
  Mutex mutex_;
  std::vector<std::string> complaints_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> returned_ ABSL_GUARDED_BY(mutex_);  // errors
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_PROPERTY_REDUCER_LIFE_H_
