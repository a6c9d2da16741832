#include "client/rpc/retrying_coordinator_stub.h"

#include <string>
#include <utility>

#include "base/backoff.h"
#include "client/rpc/forwarding_coordinator_stub.h"

namespace coxswain {
namespace {

class RetryingCoordinatorStub : public ForwardingCoordinatorStub {
 public:
  RetryingCoordinatorStub(std::shared_ptr<CoordinatorStub> stub,
                          const RetryPolicy& policy)
      : ForwardingCoordinatorStub(std::move(stub)), policy_(policy) {}

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    if (!options.retry) return stub().Call(method, request, response, options);
    return CallWithRetries(policy_, options, [&](absl::Duration left) {
      CallOptions once = options;
      once.timeout = left;
      return stub().Call(method, request, response, once);
    });
  }

 private:
  const RetryPolicy policy_;
};

}  // namespace

bool IsWorthRepeating(const absl::Status& status, const CancelSignal* cancel) {
  if (absl::IsUnavailable(status)) return true;
  return absl::IsCancelled(status) &&
         (cancel == nullptr || cancel->status().ok());
}

absl::Status CallWithRetries(
    const RetryPolicy& policy, const CallOptions& options,
    const std::function<absl::Status(absl::Duration left)>& attempt) {
  CancelSignal never;
  CancelSignal* cancel = options.cancel == nullptr ? &never : options.cancel;
  const absl::Time deadline = policy.clock->Now() + options.timeout;
  Backoff backoff(policy.base, policy.cap, policy.random);
  absl::Duration left = options.timeout;
  while (true) {
    absl::Status status = attempt(left);
    if (!IsWorthRepeating(status, cancel)) return status;
    const absl::Duration pause = backoff.Next();
    if (policy.clock->Now() + pause >= deadline) return status;
    if (cancel->WaitFor(pause)) return cancel->status();
    left = deadline - policy.clock->Now();
    if (left <= absl::ZeroDuration()) return status;
  }
}

std::shared_ptr<CoordinatorStub> MakeRetryingCoordinatorStub(
    std::shared_ptr<CoordinatorStub> stub, const RetryPolicy& policy) {
  return std::make_shared<RetryingCoordinatorStub>(std::move(stub), policy);
}

}  // namespace coxswain
