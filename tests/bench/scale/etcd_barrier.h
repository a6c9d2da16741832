#ifndef COXSWAIN_TESTS_BENCH_SCALE_ETCD_BARRIER_H_
#define COXSWAIN_TESTS_BENCH_SCALE_ETCD_BARRIER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace coxswain::bench {

// The clients of a double barrier over etcd, each with a connection of its own.
// One enters as etcd's own recipe for Go does: it puts a key of its own, reads
// all such keys, and, if it is the last one, puts a key that all others watch.
// Entering only; leases, which the recipe takes once, are left out. One thread
// calls it.
class EtcdBarrier {
 public:
  EtcdBarrier(const std::string& endpoint, int clients);
  ~EtcdBarrier();

  // Returns the time from the first call until all have entered.
  absl::StatusOr<absl::Duration> Enter();

 private:
  class Client;

  std::vector<std::unique_ptr<Client>> clients_;
  int rounds_ = 0;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCALE_ETCD_BARRIER_H_
