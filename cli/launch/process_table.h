#ifndef COXSWAIN_CLI_LAUNCH_PROCESS_TABLE_H_
#define COXSWAIN_CLI_LAUNCH_PROCESS_TABLE_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace coxswain {

// How a worker process ended.
struct WorkerExit {
  int slot = 0;
  pid_t pid = 0;
  int exit_code = 0;  // meaningful if signal is 0
  int signal = 0;

  bool ok() const { return signal == 0 && exit_code == 0; }
  // What a shell would return for it: 128 + the signal's number.
  int Status() const { return signal != 0 ? 128 + signal : exit_code; }
  // "exited with code 3", "was killed by signal 9 (SIGKILL)"
  std::string ToString() const;
};

struct LaunchGraces {
  // After the first failure: how long the others may take to end by
  // themselves, before they are told to with SIGTERM.
  absl::Duration exit = absl::Seconds(5);
  // After SIGTERM, or a request to stop: how long before SIGKILL.
  absl::Duration stop = absl::Seconds(10);
};

// What to do now with the workers that still run.
struct LaunchDecision {
  int signal = 0;      // send this to all of them; 0: nothing
  std::string reason;  // why, for people
  // When to decide again, if nothing happens before.
  absl::Time next = absl::InfiniteFuture();
};

// The workers of one launcher: what happened to them, and what to do about
// it. Plain decisions: no process is touched and no clock read, so that every
// path can be tested. One thread only.
class ProcessTable {
 public:
  ProcessTable(int workers, LaunchGraces graces);

  // What happened.
  void Exited(absl::Time now, const WorkerExit& exit);
  void StopRequested(absl::Time now, int signal);

  // Moves on to a harder signal when a grace is over. Each is decided once.
  LaunchDecision Decide(absl::Time now);

  bool running(int slot) const { return running_[slot]; }
  bool AllEnded() const { return left_ == 0; }
  const std::optional<WorkerExit>& first_failure() const {
    return first_failure_;
  }
  // That of the first failure; 0 without one.
  int ExitStatus() const;

 private:
  enum class Stage { kRunning, kTerminated, kKilled };

  const LaunchGraces graces_;
  std::vector<bool> running_;
  int left_;
  std::optional<WorkerExit> first_failure_;
  absl::Time failed_at_ = absl::InfiniteFuture();
  absl::Time stop_at_ = absl::InfiniteFuture();      // first request to stop
  absl::Time kill_now_at_ = absl::InfiniteFuture();  // the impatient one
  int interrupts_ = 0;
  Stage stage_ = Stage::kRunning;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_PROCESS_TABLE_H_
