#ifndef COXSWAIN_CLI_RUN_H_
#define COXSWAIN_CLI_RUN_H_

#include "absl/status/statusor.h"
#include "cli/options.h"

namespace coxswain {

// `coxswain run`: starts the workers of this node, stays until they end, and
// tells the coordinator of each end. Returns the exit status. Called in the
// main thread, before any other is started.
//
// Without a coordinator's address it runs one itself, on the loopback, with
// its state in a temporary folder that is removed at the end.
absl::StatusOr<int> Run(const RunOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_RUN_H_
