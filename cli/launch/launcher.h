#ifndef COXSWAIN_CLI_LAUNCH_LAUNCHER_H_
#define COXSWAIN_CLI_LAUNCH_LAUNCHER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/random.h"
#include "cli/launch/process_table.h"
#include "cli/launch/signals.h"
#include "cli/launch/worker_environment.h"

namespace coxswain {

struct LaunchOptions {
  std::vector<std::string> program;    // and its arguments
  WorkerEnvironment environment;       // its nproc workers are started
  std::vector<std::string> inherited;  // NAME=VALUE
  bool prefix = true;                  // "[node/slot] " before each line
  LaunchGraces graces;
  RestartPolicy restarts;
  int stop_status = 0;  // in place of 0, if a request to stop came
  Clock* clock = Clock::Real();
  RandomSource* random = RandomSource::System();
};

// Returns a line of the launcher's own, in the format of the log.
std::string LauncherLine(const LaunchOptions& options, absl::string_view text);

// Called for each process's end, at once, from the loop: must not block.
using ExitCallback =
    std::function<void(const WorkerExit&, uint64_t incarnation)>;

// The signals that a launcher takes. It forwards them to its workers, except
// SIGCHLD.
inline constexpr int kLauncherSignals[] = {SIGINT,  SIGTERM, SIGHUP,
                                           SIGUSR1, SIGUSR2, SIGCHLD};

// Starts the workers and waits until all have ended and their output is
// written. Returns ProcessTable::ExitStatus, or stop_status. Copies their
// output line by line to stdout and stderr, forwards `signals` to them, and
// names those that failed on stderr.
//
// SIGINT, SIGTERM and SIGHUP also ask to stop: workers that still run after
// graces.stop, or when SIGINT comes again, are killed. After a failure the
// others may take graces.exit to end by themselves, then get SIGTERM, then
// after graces.stop SIGKILL; in an elastic job they continue, and a new process
// with another incarnation replaces the one that failed, as often as `restarts`
// allows. When Launch returns, no process of the workers' groups is left.
//
// Collects every other child of this process that ends, so that none stays a
// zombie: the entry point of a container inherits all orphans of the container.
//
// Runs in the calling thread, which must be the main one (see ChildProcess).
// Fails as ChildProcess::Start, for the first processes; after an error no
// process runs.
absl::StatusOr<int> Launch(const LaunchOptions& options,
                           const HeldSignals& signals,
                           const ExitCallback& on_exit);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_LAUNCHER_H_
