#include "cli/launch/child_process.h"

#include <fcntl.h>
#include <linux/close_range.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// What the new process needs between fork and exec, where only calls that are
// safe in a signal handler are allowed.
struct ExecPlan {
  char* const* arguments;
  char* const* environment;
  int stdout_fd;
  int stderr_fd;
  int null_fd;
  int error_fd;
  pid_t launcher;
};

[[noreturn]] void Exec(const ExecPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.launcher) _exit(127);  // it ended before the prctl

  // Held and ignored signals are inherited over exec; those of a launcher
  // mean nothing to its workers.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number :
       {SIGPIPE, SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    signal(number, SIG_DFL);
  }

  if (dup2(plan.null_fd, STDIN_FILENO) >= 0 &&
      dup2(plan.stdout_fd, STDOUT_FILENO) >= 0 &&
      dup2(plan.stderr_fd, STDERR_FILENO) >= 0) {
    // No socket or database of the launcher goes to the workers. Kernels
    // before 5.11 do not know this flag; there, descriptors that libraries
    // opened without O_CLOEXEC leak, which is harmless.
    close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    execvpe(plan.arguments[0], plan.arguments, plan.environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written =
      write(plan.error_fd, &error, sizeof(error));
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::vector<std::string>& program,
    const std::vector<std::string>& environment) {
  COXSWAIN_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  COXSWAIN_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  COXSWAIN_ASSIGN_OR_RETURN(Pipe failure, MakePipe());
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return absl::ErrnoToStatus(errno, "cannot open /dev/null");
  const std::vector<char*> arguments = Pointers(program);
  const std::vector<char*> variables = Pointers(environment);
  const ExecPlan plan = {
      arguments.data(), variables.data(),    out.write.get(), err.write.get(),
      null.get(),       failure.write.get(), getpid()};

  std::unique_ptr<ChildProcess> child(new ChildProcess);
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot start a process");
  if (pid == 0) Exec(plan);
  child->pid_ = pid;

  out.write.Close();
  err.write.Close();
  failure.write.Close();
  int error = 0;
  ssize_t got;
  do {
    got = read(failure.read.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got > 0) {  // and the destructor collects the child
    return absl::ErrnoToStatus(error,
                               absl::StrCat("cannot start ", program[0]));
  }

  child->pidfd_ = OpenPidfd(pid);
  if (!child->pidfd_.valid()) {
    return absl::ErrnoToStatus(errno, "cannot open a pidfd (needs Linux 5.3)");
  }
  child->stdout_ = std::move(out.read);
  child->stderr_ = std::move(err.read);
  for (const UniqueFd* fd : {&child->stdout_, &child->stderr_}) {
    fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  }
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ != 0 && !reaped_) {
    Signal(SIGKILL);
    Reap();
  }
}

void ChildProcess::Signal(int signal) {
  if (!reaped_) kill(-pid_, signal);
}

ChildProcess::End ChildProcess::Reap() {
  // Kills the group before it collects the process: until then, the
  // number of the group cannot belong to another.
  siginfo_t info;
  while (waitid(P_PID, pid_, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  kill(-pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  End end;
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.exit_code = WEXITSTATUS(status);
  }
  return end;
}

}  // namespace coxswain
