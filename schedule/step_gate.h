#ifndef COXSWAIN_SCHEDULE_STEP_GATE_H_
#define COXSWAIN_SCHEDULE_STEP_GATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "schedule/ticket.h"

namespace coxswain::schedule {

// The interface by which a rank asks for a step's decision: a worker's side of
// the step agreement of one stream. Implemented by client/schedule for a
// session, and valid as long as that; tests implement their own.
//
//   Announce, AwaitGrant, the exchange, Decide; then the next step.
//
// Threading: Announce is for the thread that trains, AwaitGrant and NoteBucket
// for the exchange thread, Decide for either of them, one after the other.
// Abort may come from any thread at any time.
class StepGate {
 public:
  virtual ~StepGate() = default;

  // Announces the exchange that begins to the coordinator. Does not wait. The
  // gate counts the rounds, and adds the session's own requests.
  virtual absl::Status Announce(const Ticket& ticket) = 0;
  // With enforcement=strict, waits until all ranks have announced the same;
  // otherwise returns at once.
  virtual absl::Status AwaitGrant() = 0;
  // Waits for the decision of all ranks; the vote counts with commit_vote only,
  // but is always given. Fails with ABORTED, naming the ranks that did
  // something else, or nothing.
  virtual absl::StatusOr<Decision> Decide(const Vote& vote) = 0;

  // In place of Announce and Decide, on the same threads, for a step in which
  // the ranks exchange nothing and decide nothing together: for reports.
  virtual void BeginLocal(const Ticket& ticket) { static_cast<void>(ticket); }
  virtual void EndLocal() {}

  // Notes the bucket that is being exchanged, for reports.
  virtual void NoteBucket(int bucket) { static_cast<void>(bucket); }

  // Notes that the exchange of this many bytes of gradients has ended on this
  // rank, and how long the thread that trains has waited for it; for reports.
  // On the thread that trains.
  virtual void NoteExchange(int64_t gradient_bytes, absl::Duration waited) {
    static_cast<void>(gradient_bytes);
    static_cast<void>(waited);
  }

  // Returns how long AwaitGrant, or a Decide of the exchange thread, may wait
  // for other ranks: the reducer waits that much longer for the end of the
  // exchange.
  virtual absl::Duration timeout() const { return absl::ZeroDuration(); }

  // Makes AwaitGrant and Decide fail with this error, now and later, because
  // the reducer has failed. Returns at once. The first reason stays.
  virtual void Abort(const absl::Status& reason) { static_cast<void>(reason); }
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_STEP_GATE_H_
