#ifndef COXSWAIN_CLI_LAUNCH_LAUNCHER_H_
#define COXSWAIN_CLI_LAUNCH_LAUNCHER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// Told of each process's end, at once, from the loop: must not block.
using ExitCallback =
    std::function<void(const WorkerExit&, uint64_t incarnation)>;

// The signals that a launcher takes. It hands them on to its workers, but for
// SIGCHLD.
inline constexpr int kLauncherSignals[] = {SIGINT,  SIGTERM, SIGHUP,
                                           SIGUSR1, SIGUSR2, SIGCHLD};

// Starts the workers and stays until all have ended and their output is
// written; returns the exit status of the first that failed, or 0, as
// ProcessTable::ExitStatus says, or stop_status. Copies their output line by
// line to stdout and stderr, hands `signals` on to them, and names those that
// failed on stderr.
//
// SIGINT, SIGTERM and SIGHUP also ask to stop: workers that still run after
// graces.stop, or when SIGINT comes again, are killed. After a failure the
// others may take graces.exit to end by themselves, then get SIGTERM, then
// after graces.stop SIGKILL; in an elastic job they are left alone, and a new
// process takes the place of the one that failed as often as `restarts` allows,
// with an incarnation of its own. When Launch returns, no process of the
// workers' groups is left.
//
// Collects every other child of this process that ends, so that none stays a
// zombie: the entry point of a container inherits all orphans of the container.
//
// Runs in the calling thread, which must be the main one (see ChildProcess).
// Errors are those of ChildProcess::Start, for the first processes; nothing
// runs after one.
absl::StatusOr<int> Launch(const LaunchOptions& options,
                           const HeldSignals& signals,
                           const ExitCallback& on_exit);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_LAUNCHER_H_
