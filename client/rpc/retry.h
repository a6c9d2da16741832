#ifndef COXSWAIN_CLIENT_RPC_RETRY_H_
#define COXSWAIN_CLIENT_RPC_RETRY_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/backoff.h"
#include "base/cancel_signal.h"
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

  // Returns the pauses of something that is repeated.
  Backoff Pauses() const { return {base, cap, random}; }
  // Returns a random addition to a pause, uniform in [0, most), which separates
  // callers that begin at the same time.
  absl::Duration Jitter(absl::Duration most) const {
    return most * random->Uniform();
  }
};

// Returns whether a call failed because no coordinator answered: UNAVAILABLE,
// or CANCELLED although `cancel` (may be null) is not raised, since a
// coordinator that shuts down cancels the calls that it has not answered.
bool IsWorthRepeating(const absl::Status& status, const CancelSignal* cancel);

// Returns whether a stream that has ended with `end` may be opened again: the
// coordinator has not refused it. A connection that is lost, or that a proxy
// cuts, ends a stream with almost any other code.
bool IsWorthReopening(const absl::Status& end);

// The attempts of one operation: the time for all of them, and the pauses in
// between. One thread only.
class Retry {
 public:
  // A raised `cancel` (may be null; outlives this) ends the pause. Time and
  // pauses start here.
  Retry(const RetryPolicy& policy, absl::Duration timeout,
        const CancelSignal* cancel);
  Retry(const Retry&) = delete;
  Retry& operator=(const Retry&) = delete;

  // Returns the time left for the next attempt.
  absl::Duration left() const { return left_; }
  // Waits until the next attempt is due. Returns false if there is none: the
  // time would have passed by then, or the signal is raised.
  bool Pause();
  // Starts time and pauses again.
  void Restart();

  // Returns the error of the operation, after Pause has returned false: that of
  // the last attempt, with the operation and the address, or the status of the
  // raised signal.
  absl::Status GivenUp(const absl::Status& last, absl::string_view operation,
                       absl::string_view address) const;

 private:
  const RetryPolicy policy_;
  const absl::Duration timeout_;
  const CancelSignal never_;
  const CancelSignal& cancel_;
  Backoff pauses_;
  int attempts_ = 1;
  absl::Time deadline_;
  absl::Duration left_;
};

// Calls `attempt` with the time that is left, until its outcome is not worth
// repeating, the timeout of `options` leaves no other attempt, or
// options.cancel is raised. `operation` and `address` name it in the error:
// "Store/Set", and the coordinators.
absl::Status CallWithRetries(
    const RetryPolicy& policy, const CallOptions& options,
    absl::string_view operation, absl::string_view address,
    const std::function<absl::Status(absl::Duration left)>& attempt);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_RETRY_H_
