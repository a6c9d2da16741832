#ifndef COXSWAIN_CLIENT_SCHEDULE_SCHEDULE_CLIENT_H_
#define COXSWAIN_CLIENT_SCHEDULE_SCHEDULE_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/plan.h"
#include "schedule/step_gate.h"

namespace coxswain {

// A session's part of the schedule: one gate for each stream of exchanges.
// Owned by the session; see Session::schedule(). Thread-safe.
class ScheduleClient {
 public:
  virtual ~ScheduleClient() = default;

  // Returns the gate of a stream, which lives as long as the session; one
  // reducer uses it. With enforcement=off it answers at once with this rank's
  // own vote. The name has 1 to 64 characters of [A-Za-z0-9._-]; a session has
  // at most 64 streams.
  virtual absl::StatusOr<schedule::StepGate*> Gate(
      absl::string_view stream = schedule::kTrainStream) = 0;

  // Asks all ranks to stop after the next decision of each stream (AgreedStop),
  // with this rank's next tickets. Any number of times; the first reason
  // counts. With enforcement=off no decision is common to all ranks: the
  // request is logged, and has no effect.
  virtual void RequestStop(absl::string_view reason) = 0;

  // Asks that this worker leave the job after the next step of the stream
  // "train": the decision on it is then to regroup. The first reason counts.
  // With enforcement=off this is logged, and has no effect.
  virtual void RequestDrain(absl::string_view reason) = 0;

  // Asks that all ranks save their state after the next committed step of the
  // stream "train": its decision is then to save a checkpoint. Until then the
  // first reason counts; afterwards another checkpoint can be requested. With
  // enforcement=off this is logged, and has no effect.
  virtual void RequestCheckpoint(absl::string_view reason) = 0;

  // Returns the newest plan of the job that this session has received: when it
  // joined, or with a decision of the stream "train". A new follower of the
  // schedule begins with it.
  virtual schedule::Plan plan() const = 0;

  // Counts a micro-batch as progress, whatever the stream.
  virtual void NoteMicroBatch() = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SCHEDULE_SCHEDULE_CLIENT_H_
