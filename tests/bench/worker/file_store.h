#ifndef COXSWAIN_TESTS_BENCH_WORKER_FILE_STORE_H_
#define COXSWAIN_TESTS_BENCH_WORKER_FILE_STORE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"

namespace coxswain::bench {

// The store for ranks that share a folder and nothing else: a file for each
// key, so that a benchmark needs no coordinator. The folder exists, and is
// empty at first. Thread-safe. A Get that finds nothing in time is
// DEADLINE_EXCEEDED; UNAVAILABLE if the folder cannot be written to.
class FileStore : public RendezvousStore {
 public:
  explicit FileStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  // Looks again every few milliseconds.
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;

 private:
  std::string PathOf(absl::string_view key) const;

  const std::string folder_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_WORKER_FILE_STORE_H_
