#include "client/comm/memory_store.h"

#include "absl/strings/str_cat.h"

namespace coxswain {

absl::Status MemoryStore::Set(absl::string_view key, absl::string_view value) {
  MutexLock lock(&mutex_);
  values_[std::string(key)] = std::string(value);
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::Get(absl::string_view key,
                                             absl::Duration timeout) {
  const std::string wanted(key);
  MutexLock lock(&mutex_);
  const bool found =
      changed_.WaitFor(&mutex_, timeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return values_.count(wanted) > 0;
      });
  if (found) return values_[wanted];
  return absl::DeadlineExceededError(absl::StrCat(
      "nobody set '", key, "' within ", absl::FormatDuration(timeout)));
}

}  // namespace coxswain
