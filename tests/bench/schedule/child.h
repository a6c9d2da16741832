#ifndef COXSWAIN_TESTS_BENCH_SCHEDULE_CHILD_H_
#define COXSWAIN_TESTS_BENCH_SCHEDULE_CHILD_H_

#include <string>

#include "absl/status/statusor.h"

namespace coxswain::bench {

// Servers that the benchmarks of the schedule measure, each in a process of its
// own that ends with this one and may run on every processor. To be called
// before this program has any thread. Return where the server listens, on the
// loopback interface.

// Starts a coordinator with its state below `folder`; returns "HOST:PORT".
absl::StatusOr<std::string> StartCoordinator(const std::string& folder);

// Answers a round over bare sockets: each client sends the number of clients,
// in four bytes, for each round, and gets four bytes once all have done so. One
// thread and one epoll: the least that any such server can do. Returns its
// port.
absl::StatusOr<int> StartEpollServer();

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCHEDULE_CHILD_H_
