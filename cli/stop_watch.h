#ifndef COXSWAIN_CLI_STOP_WATCH_H_
#define COXSWAIN_CLI_STOP_WATCH_H_

#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "base/cancel_signal.h"
#include "base/unique_fd.h"
#include "cli/launch/signals.h"

namespace coxswain {

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

#endif  // COXSWAIN_CLI_STOP_WATCH_H_
