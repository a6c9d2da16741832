#ifndef COXSWAIN_TESTS_BENCH_SCHEDULE_EPOLL_H_
#define COXSWAIN_TESTS_BENCH_SCHEDULE_EPOLL_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace coxswain::bench {

// Serves until the process ends; see StartEpollServer. Reports the port once it
// listens.
void ServeEpollRounds(const std::function<void(int port)>& tell);

// All clients of such a server, in one thread.
class EpollClients {
 public:
  // Connects `count` sockets.
  absl::Status Connect(int port, int count);
  // Runs one round of all clients. Returns the time from the first message to
  // the last answer.
  absl::StatusOr<absl::Duration> Round();

 private:
  UniqueFd epoll_;
  std::vector<UniqueFd> sockets_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCHEDULE_EPOLL_H_
