#ifndef COXSWAIN_CLI_LAUNCH_PIDFD_H_
#define COXSWAIN_CLI_LAUNCH_PIDFD_H_

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace coxswain {

// A descriptor that is readable once the process has ended; see
// pidfd_open(2). Invalid on failure, with errno set. (The system call itself:
// glibc 2.36 declares its wrapper without C linkage.)
inline UniqueFd OpenPidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_PIDFD_H_
