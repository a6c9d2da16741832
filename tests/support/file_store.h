#ifndef COXSWAIN_TESTS_SUPPORT_FILE_STORE_H_
#define COXSWAIN_TESTS_SUPPORT_FILE_STORE_H_

#include <string>
#include <utility>

#include "client/comm/communicator.h"

namespace coxswain {

// The store for ranks that are processes of one test or benchmark and share a
// folder, so that they need no coordinator: a file per key. Thread-safe. A Get
// that finds nothing in time is DEADLINE_EXCEEDED; UNAVAILABLE if the folder
// cannot be used.
class FileStore : public RendezvousStore {
 public:
  // The folder must exist.
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;

 private:
  std::string PathOf(absl::string_view key) const;

  const std::string folder_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_FILE_STORE_H_
