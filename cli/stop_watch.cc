#include "cli/stop_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {

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
    // Nothing is there after EINTR: stopped and continued.
    if (read(signals_.get(), &signal, sizeof(signal)) != sizeof(signal)) {
      continue;
    }
    stop_.Raise(
        absl::CancelledError(absl::StrCat("signal ", signal.ssi_signo)));
    return;
  }
}

}  // namespace coxswain
