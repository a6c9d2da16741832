#ifndef COXSWAIN_CLIENT_STAND_IN_STAND_IN_DESK_H_
#define COXSWAIN_CLIENT_STAND_IN_STAND_IN_DESK_H_

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "proto/rendezvous.pb.h"
#include "schedule/fallback_schedule.h"
#include "schedule/plan.h"

namespace coxswain {

// Where the ranks of a generation come while no coordinator is there: a
// schedule::FallbackSchedule in the words of the Attach stream. Lives in rank
// 0's session; its own rank comes through StandIn, the others through
// StandInServer. Thread-safe.
class StandInDesk {
 public:
  struct Options {
    // Of the generation: who comes must have the same cluster, job and
    // generation.
    v1::Fence fence;
    int world_size = 0;
    std::function<schedule::Plan()> plan;
    const Clock* clock = Clock::Real();
  };
  // A visitor's ear. Both are called with the desk's lock held: they must not
  // block, nor call the desk.
  struct Ear {
    std::function<void(const v1::AttachEvent&)> on_event;
    // The visit is over, other than by Depart.
    std::function<void(const absl::Status&)> on_end;
  };
  using Visit = uint64_t;

  explicit StandInDesk(Options options);

  // Answers with Attached, and takes the place of an earlier visit of the rank.
  //   INVALID_ARGUMENT     no such rank
  //   FAILED_PRECONDITION  another generation, or closed
  absl::StatusOr<Visit> Arrive(const v1::Hello& hello, Ear ear);
  // INVALID_ARGUMENT: no message of a visitor, or not a sensible one. Ignored
  // once the visit is over.
  absl::Status Hear(Visit visit, v1::AttachRequest request);
  // Nothing that was said in this visit counts once this has returned, and its
  // ear is not spoken to any more.
  void Depart(Visit visit);

  // Nothing is decided any more. All visits end with FAILED_PRECONDITION.
  void Close();

 private:
  struct Visitor {
    int rank = 0;
    Ear ear;
  };

  absl::Status CheckHello(const v1::Hello& hello) const;
  void DepartLocked(Visit visit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SayLocked(const schedule::FallbackSchedule::Messages& messages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteSilenceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  schedule::FallbackSchedule schedule_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Visit next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<Visit, Visitor> visitors_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Visit> visit_of_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::string silence_ ABSL_GUARDED_BY(mutex_);            // was logged
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_STAND_IN_STAND_IN_DESK_H_
