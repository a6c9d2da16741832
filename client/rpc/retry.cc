#include "client/rpc/retry.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace coxswain {

bool IsWorthRepeating(const absl::Status& status, const CancelSignal* cancel) {
  if (absl::IsUnavailable(status)) return true;
  return absl::IsCancelled(status) &&
         (cancel == nullptr || cancel->status().ok());
}

bool IsWorthReopening(const absl::Status& end) {
  switch (end.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return false;
    default:
      return true;
  }
}

Retry::Retry(const RetryPolicy& policy, absl::Duration timeout,
             const CancelSignal* cancel)
    : policy_(policy),
      timeout_(timeout),
      cancel_(cancel == nullptr ? never_ : *cancel),
      pauses_(policy.Pauses()),
      deadline_(policy.clock->Now() + timeout),
      left_(timeout) {}

bool Retry::Pause() {
  const absl::Duration pause = pauses_.Next();
  if (policy_.clock->Now() + pause >= deadline_) return false;
  if (cancel_.WaitFor(pause)) return false;
  left_ = deadline_ - policy_.clock->Now();
  if (left_ <= absl::ZeroDuration()) return false;
  ++attempts_;
  return true;
}

void Retry::Restart() {
  deadline_ = policy_.clock->Now() + timeout_;
  left_ = timeout_;
  pauses_.Reset();
}

absl::Status Retry::GivenUp(const absl::Status& last,
                            absl::string_view operation,
                            absl::string_view address) const {
  absl::Status cancelled = cancel_.status();
  if (!cancelled.ok()) return cancelled;
  absl::Status status(
      last.code(),
      absl::StrCat(last.message(), " (", operation, " at ", address, ", ",
                   attempts_, attempts_ == 1 ? " attempt" : " attempts",
                   " within ", absl::FormatDuration(timeout_), ")"));
  last.ForEachPayload(
      [&status](absl::string_view url, const absl::Cord& payload) {
        status.SetPayload(url, payload);
      });
  return status;
}

absl::Status CallWithRetries(
    const RetryPolicy& policy, const CallOptions& options,
    absl::string_view operation, absl::string_view address,
    const std::function<absl::Status(absl::Duration left)>& attempt) {
  Retry retry(policy, options.timeout, options.cancel);
  while (true) {
    absl::Status status = attempt(retry.left());
    if (!IsWorthRepeating(status, options.cancel)) return status;
    if (!retry.Pause()) return retry.GivenUp(status, operation, address);
  }
}

}  // namespace coxswain
