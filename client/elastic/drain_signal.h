#ifndef COXSWAIN_CLIENT_ELASTIC_DRAIN_SIGNAL_H_
#define COXSWAIN_CLIENT_ELASTIC_DRAIN_SIGNAL_H_

#include <csignal>

#include "absl/status/status.h"

namespace coxswain {

// Turns a signal into a request to drain: for a program whose host may be taken
// away with notice, as Kubernetes and batch systems do with SIGTERM.
//
//   COXSWAIN_RETURN_IF_ERROR(DrainOnSignal());
//   options.drain_requested = DrainSignalled;
//
// The first signal only sets a flag; a second one has its usual effect, so that
// a worker that hangs, or waits for others to join, can be ended. Called once
// in a process; fails with INVALID_ARGUMENT for a signal that cannot be caught.
absl::Status DrainOnSignal(int signal_number = SIGTERM);

// Returns whether the signal has been received. Any thread.
bool DrainSignalled();

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_DRAIN_SIGNAL_H_
