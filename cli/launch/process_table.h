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
  bool stopped = false;  // after the launcher had sent it a signal to end

  bool ok() const { return signal == 0 && exit_code == 0; }
  // Returns the exit code, or 128 + the signal's number, as a shell does.
  int Status() const { return signal != 0 ? 128 + signal : exit_code; }
  // Returns "exited with code 3" or "was killed by signal 9 (SIGKILL)".
  std::string ToString() const;
};

struct LaunchGraces {
  // After the first failure: how long the others may take to end by
  // themselves, before SIGTERM.
  absl::Duration exit = absl::Seconds(5);
  // After SIGTERM, or a request to stop: how long before SIGKILL.
  absl::Duration stop = absl::Seconds(10);
};

// What follows from the failure of a worker. A worker that succeeds does not
// mean that the job is finished: it may have been drained. A worker that is
// restarted into a finished job learns that from the coordinator, and succeeds.
struct RestartPolicy {
  // The job continues without a worker that failed, or waits for its restart:
  // the others are not stopped.
  bool elastic = false;
  int most = 0;  // restarts of each slot; more than 0 makes the job elastic
  // A slot's process is started again at once: others may wait for it. Where it
  // then runs for less than `calm`, there is this pause before the next one,
  // and twice as long after each that does, too.
  absl::Duration pause = absl::Milliseconds(100);
  absl::Duration longest_pause = absl::Seconds(5);
  absl::Duration calm = absl::Seconds(10);
};

// What to do now.
struct LaunchDecision {
  int signal = 0;          // send this to all that run; 0: nothing
  std::string reason;      // why, for display
  std::vector<int> start;  // these slots again; they count as running from now
  // When to decide again, if nothing happens before.
  absl::Time next = absl::InfiniteFuture();
};

// Tracks the workers of one launcher and decides which to signal and which to
// restart. Touches no process and reads no clock, so that every path can be
// tested. One thread only.
class ProcessTable {
 public:
  ProcessTable(int workers, LaunchGraces graces, RestartPolicy restarts = {});

  // Notes the end of a worker.
  void Exited(absl::Time now, const WorkerExit& exit);
  // Notes a request to stop, after which no worker is restarted.
  void StopRequested(absl::Time now, int signal);

  // Returns the next signal if a grace is over, and the slots whose pause is
  // over. Returns each of them once.
  LaunchDecision Decide(absl::Time now);

  bool elastic() const { return restarts_.elastic || restarts_.most > 0; }
  bool running(int slot) const { return slots_[slot].state == State::kRunning; }
  // Returns when an ended slot is restarted; infinite: it is not.
  absl::Time restart_at(int slot) const { return slots_[slot].restart_at; }
  int restarts(int slot) const { return slots_[slot].restarts; }
  bool stop_requested() const { return stop_at_ < absl::InfiniteFuture(); }
  // Returns whether the workers were sent a signal to end.
  bool stopping() const {
    return stop_requested() || stage_ != Stage::kRunning;
  }
  // Returns whether no worker runs or waits for its restart.
  bool AllEnded() const;

  // Returns the first failure that no restart followed.
  const std::optional<WorkerExit>& first_failure() const {
    return first_failure_;
  }
  // Returns the slots whose last process failed.
  std::vector<int> Failed() const;
  // Returns the status of the first failure; 0 without one. In an elastic job
  // also 0 if another worker succeeded after the last failure: the job went on
  // without those that failed.
  int ExitStatus() const;

 private:
  enum class Stage { kRunning, kTerminated, kKilled };
  enum class State { kRunning, kPausing, kSucceeded, kFailed };
  struct Slot {
    State state = State::kRunning;
    int restarts = 0;
    int short_lives = 0;  // in a row
    absl::Time started = absl::InfinitePast();
    absl::Time restart_at = absl::InfiniteFuture();
    WorkerExit last;
  };

  void Fail(absl::Time now, Slot* slot);
  void Pause(absl::Time now, Slot* slot);
  void GiveUpRestarts(absl::Time now);
  bool Any(State state) const;
  void DecideSignal(absl::Time now, LaunchDecision* decision);
  void DecideStarts(absl::Time now, LaunchDecision* decision);

  const LaunchGraces graces_;
  const RestartPolicy restarts_;
  std::vector<Slot> slots_;
  bool went_on_ = false;  // a worker succeeded after the last failure
  std::optional<WorkerExit> first_failure_;
  absl::Time failed_at_ = absl::InfiniteFuture();
  absl::Time stop_at_ = absl::InfiniteFuture();      // first request to stop
  absl::Time kill_now_at_ = absl::InfiniteFuture();  // the second SIGINT
  int interrupts_ = 0;
  Stage stage_ = Stage::kRunning;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_PROCESS_TABLE_H_
