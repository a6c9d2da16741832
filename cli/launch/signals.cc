#include "cli/launch/signals.h"

#include <pthread.h>
#include <sys/signalfd.h>

#include <cerrno>

#include "absl/status/status.h"

namespace coxswain {

HeldSignals::HeldSignals(absl::Span<const int> signals) {
  sigemptyset(&set_);
  for (const int signal : signals) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, &before_);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
}

HeldSignals::~HeldSignals() {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int HeldSignals::Wait() {
  int signal;
  do {
    signal = sigwaitinfo(&set_, nullptr);
  } while (signal < 0);  // EINTR: stopped and continued
  return signal;
}

absl::StatusOr<int> HeldSignals::OpenDescriptor() const {
  const int fd = signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot open a signalfd");
  return fd;
}

}  // namespace coxswain
