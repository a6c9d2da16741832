#ifndef COXSWAIN_CLIENT_RPC_RETRYING_COORDINATOR_STUB_H_
#define COXSWAIN_CLIENT_RPC_RETRYING_COORDINATOR_STUB_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "client/rpc/coordinator_stub.h"

namespace coxswain {

// How long to pause between attempts. The pointers outlive their users.
struct RetryPolicy {
  const Clock* clock = Clock::Real();
  RandomSource* random = RandomSource::System();
  absl::Duration base = absl::Milliseconds(100);
  absl::Duration cap = absl::Seconds(2);
};

// Whether the outcome of a call says that the coordinator is not there:
// UNAVAILABLE, or CANCELLED though `cancel` (may be null) is not raised, since
// one that shuts down cancels what it has not answered.
bool IsWorthRepeating(const absl::Status& status, const CancelSignal* cancel);

// Calls `attempt` with the time that is left, until the outcome is not worth
// repeating, the deadline of `options` would pass before the next attempt, or
// options.cancel is raised (whose status is then the result).
absl::Status CallWithRetries(
    const RetryPolicy& policy, const CallOptions& options,
    const std::function<absl::Status(absl::Duration left)>& attempt);

// Retries unary calls while the coordinator is not there, which the wire
// contract makes safe: requests that change something carry a request id.
// Streams pass through.
std::shared_ptr<CoordinatorStub> MakeRetryingCoordinatorStub(
    std::shared_ptr<CoordinatorStub> stub, const RetryPolicy& policy);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_RETRYING_COORDINATOR_STUB_H_
