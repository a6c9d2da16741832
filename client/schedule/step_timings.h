#ifndef COXSWAIN_CLIENT_SCHEDULE_STEP_TIMINGS_H_
#define COXSWAIN_CLIENT_SCHEDULE_STEP_TIMINGS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// Measures how this rank spends its steps, for the coordinator's status page:
// the gate of the stream "train" reports the phases of a step, and the
// heartbeats take the steps that have ended. A part of AttachedSchedule, and
// without a clock. Thread-safe.
//
//   Begun; Waited, Decided and Exchanged; once Over, Ended; the next step.
//
// A step lasts from the end of the one before it, the first one from its Begun.
// Until its Exchanged begins to wait, the thread that trains computes, and
// waits of other threads do not count. Of the rest, `wait` is the time in which
// any thread waited, and `exchange` the remaining time until the exchange has
// ended.
class StepTimings {
 public:
  static constexpr size_t kMost = 64;  // of one heartbeat

  // What all communicators of the session have done so far.
  struct Traffic {
    int64_t payload_bytes = 0;
    int64_t wire_bytes = 0;
  };

  // Calls `traffic` for the first step only.
  void Begun(int64_t step, absl::Time now,
             absl::FunctionRef<Traffic()> traffic);
  // A grant was waited for, on any thread.
  void Waited(absl::Time from, absl::Time to);
  // The decision was waited for, and has been received.
  void Decided(absl::Time from, absl::Time to);
  // The thread that trains has waited for the end of the exchange.
  void Exchanged(absl::Time from, absl::Time to);
  // Returns whether the step was decided on and exchanged: nothing is left to
  // wait for.
  bool Over();
  // Ends a step; one that is not Over does not count. Exchanges of one step, as
  // with sync_each_batch, count together.
  void Ended(absl::Time now, const Traffic& traffic);

  // Adds the newest steps that have ended since the last call.
  void AddTo(v1::Heartbeat* heartbeat);

 private:
  struct Interval {
    absl::Time from, to;
  };
  struct Open {
    int64_t step = 0;
    absl::Time since;
    Traffic before;
    bool decided = false;
    std::optional<Interval> exchanged;
    std::deque<Interval> waits;
  };

  bool OverLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return open_.has_value() && open_->decided && open_->exchanged.has_value();
  }
  void PutLocked(v1::StepTiming timing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::optional<Open> open_ ABSL_GUARDED_BY(mutex_);
  // When the last one ended; nothing: there was none.
  std::optional<absl::Time> ended_ ABSL_GUARDED_BY(mutex_);
  Traffic traffic_ ABSL_GUARDED_BY(mutex_);  // then
  std::deque<v1::StepTiming> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SCHEDULE_STEP_TIMINGS_H_
