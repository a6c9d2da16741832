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
  // Terms only rise: a lower one is of a coordinator that has been replaced.
  void Raise(int64_t term);
  // No other term will come: all waits end.
  void Close();
  bool closed() const;
  // Waits for a higher term than `term`; whether there is one. False also once
  // `cancel` (may be null) is raised.
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

// Repeats unary calls while the coordinator is not there, with pauses, which
// the wire contract makes safe: requests that change something carry a request
// id. options.timeout bounds it all; options.retry=false forbids it. Streams
// pass through. The only one that repeats: what it makes its calls through does
// not, but for going on to another coordinator of a list.
//
// A member has a `term`: the calls whose request has a fence then outlive a
// coordinator that is started again. Each attempt has the current term in
// its fence, and what is left of its own timeout_ms. One that is refused
// because of an earlier term is repeated, whatever options.retry is, as soon as
// the attachment has been accepted in a later one; if none can be any more,
// once in the coordinator's term, whose answer is the reason.
std::shared_ptr<CoordinatorStub> MakeRetryingStub(
    std::shared_ptr<CoordinatorStub> stub, const RetryPolicy& policy,
    std::shared_ptr<const CurrentTerm> term = nullptr);

// Returns the coordinator's own term, if the error's detail says that the
// request's fence has another one.
std::optional<int64_t> TermOfStaleFence(const absl::Status& status);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_RETRYING_STUB_H_
