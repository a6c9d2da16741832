#ifndef COXSWAIN_CLI_LAUNCH_CHILD_PROCESS_H_
#define COXSWAIN_CLI_LAUNCH_CHILD_PROCESS_H_

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace coxswain {

// Returns a descriptor that is readable once the process has ended; see
// pidfd_open(2). Invalid on failure, with errno set. Makes the system call
// itself: glibc 2.36 declares its wrapper without C linkage.
inline UniqueFd OpenPidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// A child of this process that leads its own process group. Its stdin is
// /dev/null, its stdout and stderr are pipes.
//
// The kernel kills it when the thread that started it ends, so that no worker
// outlives a launcher that was killed; start children in the main thread.
// Destroying it kills the whole group and waits for the process. One thread
// only.
class ChildProcess {
 public:
  // Searches PATH as execvp does. `environment` is the complete environment, as
  // NAME=VALUE. Fails with
  //   NOT_FOUND           no such program
  //   PERMISSION_DENIED   not executable
  //   INTERNAL or others  the system could not start a process
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::vector<std::string>& program,
      const std::vector<std::string>& environment);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int pidfd() const { return pidfd_.get(); }
  // Return the pipes, which do not block when read.
  UniqueFd& stdout_pipe() { return stdout_; }
  UniqueFd& stderr_pipe() { return stderr_; }

  // Sends a signal to the whole group. Does nothing once it was reaped.
  void Signal(int signal);

  struct End {
    int exit_code = 0;
    int signal = 0;
  };
  // Waits until the process has ended, kills what is left of its group, and
  // collects it. Called once.
  End Reap();

 private:
  ChildProcess() = default;

  pid_t pid_ = 0;
  bool reaped_ = false;
  UniqueFd pidfd_;
  UniqueFd stdout_;
  UniqueFd stderr_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_CHILD_PROCESS_H_
