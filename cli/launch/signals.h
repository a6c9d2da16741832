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

// Blocks signals, to be read from a descriptor instead of taken by a handler.
// Made in the main thread before any other starts, so that all threads block
// them. Also ignores SIGPIPE: without a reader, the write fails.
//
// A signal that was ignored when the program started (nohup) stays ignored.
class HeldSignals {
 public:
  explicit HeldSignals(absl::Span<const int> signals);
  // Unblocks the signals; pending ones are delivered.
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Returns a descriptor that is readable while a signal is pending; see
  // signalfd(2). The caller closes it.
  absl::StatusOr<int> OpenDescriptor() const;

 private:
  sigset_t set_;
  sigset_t before_;
  struct sigaction pipe_before_;
};

// Takes the first of the blocked signals, on its own thread, and raises stop(),
// for a command that waits for other events as well.
class StopWatch {
 public:
  // Fails with an error of the system if no descriptors are left.
  static absl::StatusOr<std::unique_ptr<StopWatch>> Start(
      const HeldSignals& signals);
  ~StopWatch();
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

  // Returns the signal, which is raised with CANCELLED and the signal's number.
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
