#include "client/device/runtime.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Microseconds(50);

}  // namespace

absl::Status AwaitEvent(DeviceRuntime* runtime, DeviceEvent event,
                        absl::Duration timeout) {
  const absl::Time end = Clock::Real()->Now() + timeout;
  Mutex mutex;
  CondVar never_notified;
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool passed, runtime->HasPassed(event));
    if (passed) return absl::OkStatus();
    if (Clock::Real()->Now() >= end) {
      return absl::DeadlineExceededError(absl::StrCat(
          "GPU ", runtime->device().index,
          " has not finished the work before an event within ",
          absl::FormatDuration(timeout),
          "; a collective on it hangs, or it has failed: end the process"));
    }
    MutexLock lock(&mutex);
    never_notified.WaitFor(&mutex, kBetweenLooks, [] { return false; });
  }
}

absl::Status CheckCopy(const void* to, const void* from, int64_t bytes) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a copy cannot have ", bytes, " bytes"));
  }
  if (bytes > 0 && (to == nullptr || from == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a copy of ", bytes, " bytes from or to null"));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
