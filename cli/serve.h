#ifndef COXSWAIN_CLI_SERVE_H_
#define COXSWAIN_CLI_SERVE_H_

#include "absl/status/status.h"
#include "cli/options.h"

namespace coxswain {

// `coxswain serve`: runs a coordinator until SIGINT or SIGTERM. Called in the
// main thread, before any other is started.
absl::Status Serve(const ServeOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_SERVE_H_
