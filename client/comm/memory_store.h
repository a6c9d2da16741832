#ifndef COXSWAIN_CLIENT_COMM_MEMORY_STORE_H_
#define COXSWAIN_CLIENT_COMM_MEMORY_STORE_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"

namespace coxswain {

// The store for ranks that live in one process. A Get of a key that is not set
// in time fails with DEADLINE_EXCEEDED. Thread-safe.
class MemoryStore : public RendezvousStore {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    MutexLock lock(&mutex_);
    values_[std::string(key)] = std::string(value);
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override {
    const std::string wanted(key);
    MutexLock lock(&mutex_);
    const bool found = changed_.WaitFor(&mutex_, timeout,
                                        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                          return values_.count(wanted) > 0;
                                        });
    if (found) return values_[wanted];
    return absl::DeadlineExceededError(absl::StrCat(
        "no rank has set '", key, "' within ", absl::FormatDuration(timeout)));
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_MEMORY_STORE_H_
