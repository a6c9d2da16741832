#ifndef COXSWAIN_TESTS_BENCH_WORKER_RAW_PAIR_H_
#define COXSWAIN_TESTS_BENCH_WORKER_RAW_PAIR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "client/comm/communicator.h"

namespace coxswain::bench {

// A connection between the ranks of a group of two that does nothing but move
// bytes: what a back end over TCP is compared with.
class RawPair {
 public:
  // Connects through options.store.
  static absl::StatusOr<RawPair> Connect(const CommunicatorOptions& options);

  // Sends and receives so many bytes at the same time.
  absl::Status Exchange(int64_t bytes);

 private:
  UniqueFd socket_;
  std::vector<char> out_;
  std::vector<char> in_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_WORKER_RAW_PAIR_H_
