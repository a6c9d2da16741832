#include "cli/launch/signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

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

absl::StatusOr<int> HeldSignals::OpenDescriptor() const {
  const int fd = signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot open a signalfd");
  return fd;
}

absl::StatusOr<std::unique_ptr<StopWatch>> StopWatch::Start(
    const HeldSignals& signals) {
  COXSWAIN_ASSIGN_OR_RETURN(const int descriptor, signals.OpenDescriptor());
  UniqueFd held(descriptor);
  UniqueFd ended(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ended.valid())
    return absl::ErrnoToStatus(errno, "cannot open an eventfd");
  return std::unique_ptr<StopWatch>(
      new StopWatch(std::move(held), std::move(ended)));
}

StopWatch::StopWatch(UniqueFd signals, UniqueFd ended)
    : signals_(std::move(signals)), ended_(std::move(ended)) {
  thread_ = std::thread([this] { Run(); });
}

StopWatch::~StopWatch() {
  eventfd_write(ended_.get(), 1);
  thread_.join();
}

void StopWatch::Run() {
  while (true) {
    pollfd watched[] = {{signals_.get(), POLLIN, 0}, {ended_.get(), POLLIN, 0}};
    poll(watched, 2, -1);
    if (watched[1].revents != 0) return;
    signalfd_siginfo signal;
    // The read fails after EINTR: the process was stopped and continued.
    if (read(signals_.get(), &signal, sizeof(signal)) != sizeof(signal)) {
      continue;
    }
    stop_.Raise(
        absl::CancelledError(absl::StrCat("signal ", signal.ssi_signo)));
    return;
  }
}

}  // namespace coxswain
