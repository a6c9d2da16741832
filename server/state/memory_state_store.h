#ifndef COXSWAIN_SERVER_STATE_MEMORY_STATE_STORE_H_
#define COXSWAIN_SERVER_STATE_MEMORY_STATE_STORE_H_

#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// A StateStore that lives as long as its object: for tests, and for a
// coordinator that need not survive. Thread-safe.
class MemoryStateStore : public StateStore {
 public:
  absl::StatusOr<std::string> Get(absl::string_view table,
                                  absl::string_view key) const override;
  absl::StatusOr<std::vector<Record>> List(
      absl::string_view table) const override;
  absl::StatusOr<std::vector<std::string>> Tables(
      absl::string_view prefix) const override;
  absl::Status Apply(const StateBatch& batch) override;

  // Makes every Apply() fail with this status until it is OK again.
  void FailWrites(const absl::Status& status);

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::map<std::string, std::string>> tables_
      ABSL_GUARDED_BY(mutex_);
  absl::Status write_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_MEMORY_STATE_STORE_H_
