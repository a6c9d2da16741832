#ifndef COXSWAIN_CLIENT_PIPELINE_PLACE_BOOK_H_
#define COXSWAIN_CLIENT_PIPELINE_PLACE_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "schedule/pipeline/action.h"
#include "schedule/pipeline/place.h"

namespace coxswain {

// An action that has been done, and when.
struct TimedAction {
  pipeline::Action action;
  absl::Time begin;
  absl::Time end;
};

// Notes where a rank is in its list of actions, and how long its passes take. A
// part of PipelineExecutor, which it may outlive in the hands of those who
// watch it.
//
// Threading: Begin, Enter and End by one thread; place by any.
class PlaceBook {
 public:
  // Of each kind of passes of a stage: so many of the last ones.
  static constexpr size_t kKeptPasses = 64;

  explicit PlaceBook(const Clock* clock) : clock_(clock) {}

  // A step of so many micro-batches begins, or the first, by a schedule of this
  // hash. Its passes count among the medians only if they are `measured`.
  void Begin(int micro_batches, uint64_t schedule, bool measured = true);
  // The rank comes to this action of its list; the one before has ended.
  void Enter(int at, const pipeline::Action& action);
  // It comes to the end of its list, which has so many.
  void End(int actions);
  // A step in which it computes nothing: the list's end is where it is in it.
  void Pass(int actions, int micro_batches, uint64_t schedule);
  // The action that it is in has failed: it is no measure of later ones.
  void Fail();

  // Before the first step the step is -1.
  PipelinePlace place() const;
  // Returns the actions of this step that have ended, if they are kept.
  std::vector<TimedAction> TakeActions();
  void KeepActions(size_t most) { most_kept_ = most; }

 private:
  struct LastTimes {
    std::vector<double> seconds;
    size_t next = 0;
  };

  void Leave(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  size_t most_kept_ = 0;
  std::vector<TimedAction> kept_;
  mutable Mutex mutex_;
  PipelinePlace place_ ABSL_GUARDED_BY(mutex_);
  absl::Time since_ ABSL_GUARDED_BY(mutex_);
  bool measured_ ABSL_GUARDED_BY(mutex_) = true;
  bool in_action_ ABSL_GUARDED_BY(mutex_) = false;
  pipeline::Action action_ ABSL_GUARDED_BY(mutex_);
  // By stage and kind of pass.
  std::map<std::pair<int, pipeline::ActionKind>, LastTimes> times_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_PIPELINE_PLACE_BOOK_H_
