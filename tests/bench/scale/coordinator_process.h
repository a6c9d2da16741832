#ifndef COXSWAIN_TESTS_BENCH_SCALE_COORDINATOR_PROCESS_H_
#define COXSWAIN_TESTS_BENCH_SCALE_COORDINATOR_PROCESS_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace coxswain::bench {

// A `coxswain serve`, which ends with this process.
struct CoordinatorProcess {
  pid_t pid = 0;
  int port = 0;  // on the loopback interface
};

struct CoordinatorProcessOptions {
  std::string coxswain;  // the program
  std::string folder;    // for its state and its log
};

// Starts a coordinator in a child process, and waits until it listens. Called
// before this program has any thread.
absl::StatusOr<CoordinatorProcess> StartCoordinatorProcess(
    const CoordinatorProcessOptions& options);

// Sets how many descriptors this process and its children may have.
absl::Status RaiseDescriptorLimit(int wanted);

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCALE_COORDINATOR_PROCESS_H_
