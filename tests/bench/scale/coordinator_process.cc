#include "tests/bench/scale/coordinator_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kLook = absl::Milliseconds(5);

// In the new process; returns only if that cannot be started.
void Serve(const CoordinatorProcessOptions& process,
           const std::string& port_file) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Its log is work too.
  const std::string log = process.folder + "/log";
  const UniqueFd file(
      open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  dup2(file.get(), STDOUT_FILENO);
  dup2(file.get(), STDERR_FILENO);
  const std::string state = process.folder + "/state";
  // The workers of a bench send heartbeats only where these are measured.
  execl(process.coxswain.c_str(), "coxswain", "serve", "--listen",
        "127.0.0.1:0", "--state-dir", state.c_str(), "--port-file",
        port_file.c_str(), "--lease", "10m", static_cast<char*>(nullptr));
}

}  // namespace

absl::StatusOr<CoordinatorProcess> StartCoordinatorProcess(
    const CoordinatorProcessOptions& options) {
  const std::string port_file = options.folder + "/port";
  CoordinatorProcess process;
  process.pid = fork();
  if (process.pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (process.pid == 0) {
    Serve(options, port_file);
    _exit(1);
  }
  const absl::Time deadline = Clock::Real()->Now() + kStartTimeout;
  const CancelSignal never;
  while (Clock::Real()->Now() < deadline) {
    std::ifstream file(port_file);
    if (file >> process.port) return process;
    never.WaitFor(kLook);
  }
  return absl::UnavailableError(absl::StrCat(
      "'", options.coxswain, " serve' has not started within ",
      absl::FormatDuration(kStartTimeout), "; see ", options.folder, "/log"));
}

absl::Status RaiseDescriptorLimit(int wanted) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::ErrnoToStatus(errno, "getrlimit");
  }
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max >= static_cast<rlim_t>(wanted)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("needs ", wanted, " descriptors and may have ",
                   limit.rlim_max, "; raise it with ulimit -n"));
}

}  // namespace coxswain::bench
