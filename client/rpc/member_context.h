#ifndef COXSWAIN_CLIENT_RPC_MEMBER_CONTEXT_H_
#define COXSWAIN_CLIENT_RPC_MEMBER_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/tls_files.h"
#include "base/wait_count.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/retry.h"
#include "client/rpc/retrying_stub.h"

namespace coxswain {

// A member's context of calls in one generation: the stub, the fence that its
// requests carry, and the signal that ends its calls. Made by Session, shared
// by the clients that make calls for it. Thread-safe.
class MemberContext {
 public:
  // `stub` makes no retries.
  MemberContext(std::shared_ptr<CoordinatorStub> stub, v1::Fence fence,
                const RetryPolicy& policy, ClientSecurity security = {})
      : term_(std::make_shared<CurrentTerm>(fence.term())),
        stub_(MakeRetryingStub(std::move(stub), policy, term_)),
        fence_(std::move(fence)),
        policy_(policy),
        security_(std::move(security)) {}

  // Returns the stub, whose unary calls wait for a coordinator that is
  // restarted, and are repeated there: see retrying_stub.h.
  CoordinatorStub& stub() const { return *stub_; }
  const std::string& job() const { return fence_.job(); }
  const RetryPolicy& policy() const { return policy_; }
  // Returns the security of connections to the coordinator, for other
  // connections.
  const ClientSecurity& security() const { return security_; }

  // Returns the term of the coordinator that has accepted this member's stream
  // last: raised by the attachment.
  CurrentTerm& term() const { return *term_; }

  // Return the fence of the current term, without, and with, a new request id.
  v1::Fence fence() const {
    v1::Fence fence = fence_;
    fence.set_term(term_->Get());
    return fence;
  }
  v1::Fence NewRequest() const {
    v1::Fence present = fence();
    present.set_request_id(policy_.random->NextId());
    return present;
  }

  // Returns the signal that is raised, with the reason, when the generation
  // ends for this member.
  CancelSignal& ended() { return ended_; }
  // Returns the signal that is raised when an answer has shown that the fence
  // is stale: the generation or the member is not that of the coordinator. An
  // earlier term alone does not raise it.
  CancelSignal& stale() { return stale_; }

  // Returns where the threads count that wait for other members.
  const std::shared_ptr<WaitCount>& waits() const { return waits_; }

  // Returns options of a call that the end of the generation ends. A call that
  // waits at the coordinator has a timeout a little longer than its wait, so
  // that the coordinator's own, more specific error comes first.
  CallOptions Call(absl::Duration timeout = absl::Seconds(30)) {
    CallOptions options;
    options.timeout = timeout;
    options.cancel = &ended_;
    return options;
  }
  CallOptions WaitingCall(absl::Duration wait) {
    return Call(wait + absl::Seconds(5));
  }

  // Returns the status for the outcome of a call: the reason of the end if the
  // generation has ended meanwhile. Raises stale() for a stale fence.
  absl::Status Outcome(absl::Status status);

 private:
  const std::shared_ptr<CurrentTerm> term_;
  const std::shared_ptr<CoordinatorStub> stub_;
  const v1::Fence fence_;
  const RetryPolicy policy_;
  const ClientSecurity security_;
  const std::shared_ptr<WaitCount> waits_ = std::make_shared<WaitCount>();
  CancelSignal ended_;
  CancelSignal stale_;
};

// Returns whether the error's detail is a stale fence.
bool IsStaleFence(const absl::Status& status);

// Returns the milliseconds of a request's timeout field: at least 0, at most a
// year.
int64_t TimeoutMillis(absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_MEMBER_CONTEXT_H_
