#ifndef COXSWAIN_TESTS_SHM_FILE_STORE_H_
#define COXSWAIN_TESTS_SHM_FILE_STORE_H_

#include <string>
#include <utility>

#include "client/comm/communicator.h"

namespace coxswain {

// The store for ranks that are processes of one test: a folder with a file per
// key. Thread-safe. A Get that finds nothing in time is DEADLINE_EXCEEDED.
class FileStore : public RendezvousStore {
 public:
  // The folder exists.
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;

 private:
  std::string PathOf(absl::string_view key) const;

  const std::string folder_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SHM_FILE_STORE_H_
