#ifndef COXSWAIN_CLI_LAUNCH_SIGNALS_H_
#define COXSWAIN_CLI_LAUNCH_SIGNALS_H_

#include <csignal>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

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

  // Blocks the calling thread until a signal comes, and returns its number.
  int Wait();

  // A descriptor that is readable while a signal waits; see signalfd(2). The
  // caller closes it.
  absl::StatusOr<int> OpenDescriptor() const;

 private:
  sigset_t set_;
  sigset_t before_;
  struct sigaction pipe_before_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_SIGNALS_H_
