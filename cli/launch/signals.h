#ifndef COXSWAIN_CLI_LAUNCH_SIGNALS_H_
#define COXSWAIN_CLI_LAUNCH_SIGNALS_H_

#include <csignal>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cancel_signal.h"
#include "base/unique_fd.h"

namespace coxswain {

// Holds back signals, to be taken one by one instead of by a handler. Made in
// the main thread before any other starts, so that all threads hold them
// back. Ignores SIGPIPE too: a reader that went away is an error of the write.
//
// A signal that was ignored when the program started (nohup) stays ignored.
class HeldSignals {
 public:
  explicit HeldSignals(absl::Span<const int> signals);
  // Lets the signals through again; those that wait are delivered.
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // A descriptor that is readable while a signal waits; see signalfd(2). The
  // caller closes it.
  absl::StatusOr<int> OpenDescriptor() const;

 private:
  sigset_t set_;
  sigset_t before_;
  struct sigaction pipe_before_;
};

// Takes the first of the held signals, on a thread of its own, and raises
// stop() for it: for a command that waits for other things as well.
class StopWatch {
 public:
  // UNAVAILABLE, or another error of the system: no descriptors are left.
  static absl::StatusOr<std::unique_ptr<StopWatch>> Start(
      const HeldSignals& signals);
  ~StopWatch();
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

  // Raised with CANCELLED and the number of the signal.
  CancelSignal& stop() { return stop_; }

 private:
  StopWatch(UniqueFd signals, UniqueFd ended);
  void Run();

  const UniqueFd signals_;
  const UniqueFd ended_;
  CancelSignal stop_;
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_SIGNALS_H_
