#ifndef COXSWAIN_CAPI_CALL_H_
#define COXSWAIN_CAPI_CALL_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "capi/errors.h"

// How functions of the C interface wait: coxswain.h, WAITING.
namespace coxswain::capi {

// The time between two calls of the interrupt function, and until CX_AGAIN:
// half of what coxswain.h promises, for machines that are busy.
inline constexpr absl::Duration kSlice = absl::Milliseconds(50);

// What is waited for, by one thread at a time.
class Call {
 public:
  virtual ~Call() = default;
  // Waits for the end, `slice` at most. Returns what the function returns, its
  // results written; nullopt if the end has not come.
  virtual std::optional<absl::Status> Wait(absl::Duration slice) = 0;
  // Cancels the call. Nothing of the caller's is used once this has returned,
  // unless that takes longer than `timeout`.
  virtual void Cancel(const absl::Status& why, absl::Duration limit) = 0;
};

// An operation of the library that blocks, and cannot wait in slices itself.
struct Work {
  // Runs to the end, on whichever thread. Owns what it uses, but for memory
  // that `cancel` frees of it.
  std::function<absl::Status()> run;
  // Writes the results of a successful run, on the caller's thread. May be
  // null.
  std::function<absl::Status()> deliver;
  // Has `run` end soon. Returns whether the caller must wait for that, because
  // `run` uses the caller's memory. May be null: it ends when it does.
  std::function<bool(const absl::Status& why)> cancel;
};

// Does the work and returns its result: on this thread if it may block that, or
// else on one of the library's, while this one waits in slices.
Answer Do(cx_call* handle, Work work);
// Does the same for a call that can wait in slices.
Answer Await(cx_call* handle, const std::shared_ptr<Call>& call);

// Cancels all calls that the program has handles of, because the process exits.
// Does not wait for them.
void CancelCalls();
// Waits until no thread of the library works for a call, `timeout` at most:
// what they use is destroyed while the process exits.
void AwaitHelpers(absl::Duration limit);

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_CALL_H_
