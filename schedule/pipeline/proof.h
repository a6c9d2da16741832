#ifndef COXSWAIN_SCHEDULE_PIPELINE_PROOF_H_
#define COXSWAIN_SCHEDULE_PIPELINE_PROOF_H_

#include "absl/status/status.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::pipeline {

// Proves that a schedule comes to its end, whatever the timing, over channels
// that keep their order and hold so many messages that are sent and not yet
// received (execution.h has why one execution is a proof). Capacity 0: a send
// waits for its receive, as NCCL's do that are not grouped. A rank waits at a
// receive until its message is there, so what is proved also ends where
// receives are only begun in that place, and awaited later.
//
// FAILED_PRECONDITION: it does not. The message has the ranks that wait for
// each other in a circle, each with the action that it waits at, or two ranks
// whose messages are in different orders. INVALID_ARGUMENT: the schedule has no
// transfers.
absl::Status Prove(const Schedule& schedule, int capacity);

// Returns the smallest capacity that Prove accepts; the error is Prove's for
// any capacity.
absl::StatusOr<int> LeastCapacity(const Schedule& schedule);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_PROOF_H_
