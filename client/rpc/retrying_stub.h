#ifndef COXSWAIN_CLIENT_RPC_RETRYING_STUB_H_
#define COXSWAIN_CLIENT_RPC_RETRYING_STUB_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/retry.h"

namespace coxswain {

// The term that a member's requests carry: of the coordinator that has
// accepted its stream last. Shared by the attachment, which learns it, and the
// calls that wait for it. Thread-safe.
class CurrentTerm {
 public:
  explicit CurrentTerm(int64_t term) : state_(std::make_shared<State>(term)) {}

  int64_t Get() const;
  // Raises the term; a lower one is ignored, as it is of a coordinator that has
  // been replaced.
  void Raise(int64_t term);
  // Ends all waits: there will be no other term.
  void Close();
  bool closed() const;
  // Waits for a higher term than `term`; returns whether there is one. Returns
  // false also once `cancel` (may be null) is raised.
  bool WaitForNewer(int64_t term, absl::Duration timeout,
                    CancelSignal* cancel) const;

 private:
  struct State {
    explicit State(int64_t first) : term(first) {}
    Mutex mutex;
    CondVar changed;
    int64_t term ABSL_GUARDED_BY(mutex);
    bool closed ABSL_GUARDED_BY(mutex) = false;
  };
  // Shared with the callbacks of signals, which may outlive this.
  const std::shared_ptr<State> state_;
};

// Repeats unary calls while no coordinator can be reached, with pauses, which
// the wire contract makes safe: requests that change something carry a request
// id. options.timeout bounds all attempts; options.retry=false allows only one.
// Streams pass through. `stub` must make no retries of its own, except for
// trying the next coordinator of a list.
// not, but for going on to another coordinator of a list.
//
// For a member, with a `term`, calls whose request has a fence continue across
// a restart of the coordinator. Each attempt has the current term in its fence,
// and what is left of its own timeout_ms. One that is refused because of an
// earlier term is repeated, whatever options.retry is, as soon as the
// attachment has been accepted in a later term; if there can be none any more,
// once in the coordinator's term, whose answer is the reason.
std::shared_ptr<CoordinatorStub> MakeRetryingStub(
    std::shared_ptr<CoordinatorStub> stub, const RetryPolicy& policy,
    std::shared_ptr<const CurrentTerm> term = nullptr);

// Returns the coordinator's own term, if the error's detail is that the
// request's fence has another one.
std::optional<int64_t> TermOfStaleFence(const absl::Status& status);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_RETRYING_STUB_H_
