#include "tests/bench/schedule/child.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "server/coordinator.h"
#include "tests/bench/schedule/epoll.h"

namespace coxswain::bench {
namespace {

// What the child sends up once it listens.
struct Report {
  int port = 0;  // 0: it does not
};

void RunOnAllProcessors() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int i = 0; i < CPU_SETSIZE; ++i) CPU_SET(i, &all);
  sched_setaffinity(0, sizeof(all), &all);
}

// Runs `serve` in a child, which reports its port through the function that it
// is given.
absl::StatusOr<int> StartChild(
    const std::function<void(const std::function<void(int)>&)>& serve) {
  int ends[2];
  if (pipe(ends) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    RunOnAllProcessors();
    close(ends[0]);
    serve([&ends](int port) {
      const Report report = {port};
      if (write(ends[1], &report, sizeof(report)) < 0) _exit(1);
    });
    _exit(0);
  }
  close(ends[1]);
  Report report;
  const ssize_t got = read(ends[0], &report, sizeof(report));
  close(ends[0]);
  if (got != sizeof(report) || report.port == 0) {
    return absl::UnavailableError("a server did not start; see above");
  }
  return report.port;
}

}  // namespace

absl::StatusOr<std::string> StartCoordinator(const std::string& folder) {
  const auto port = StartChild([&folder](const auto& tell) {
    SetLogLevel("warning");
    server::CoordinatorOptions options;
    options.state_dir = folder + "/state";
    auto coordinator = server::Coordinator::Start(options);
    if (!coordinator.ok()) {
      std::fprintf(stderr, "coordinator: %s\n",
                   coordinator.status().ToString().c_str());
      return;
    }
    tell((*coordinator)->port());
    while (true) pause();
  });
  if (!port.ok()) return port.status();
  return absl::StrCat("127.0.0.1:", *port);
}

absl::StatusOr<int> StartEpollServer() {
  return StartChild([](const auto& tell) { ServeEpollRounds(tell); });
}

}  // namespace coxswain::bench
