#include "base/start_thread.h"

#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coxswain {

absl::StatusOr<std::thread> StartThread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this process cannot start a thread (", error.code().message(),
        "): raise its limit of threads (ulimit -u, or that of its container) "
        "or of memory"));
  }
}

}  // namespace coxswain
