#ifndef COXSWAIN_CLI_STATUS_H_
#define COXSWAIN_CLI_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "cli/options.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// `coxswain status`: asks the coordinator and prints to stdout.
absl::Status ShowStatus(const StatusOptions& options);

// What the coordinator says of its jobs; errors name it. `cancel` may be null.
// `steps`: of how many of its last steps each rank's timings are wanted.
absl::StatusOr<v1::DescribeResponse> AskStatus(const StatusOptions& options,
                                               CoordinatorStub& stub,
                                               CancelSignal* cancel,
                                               int steps = 0);

// The answer as a table for display, which ends with a newline.
std::string FormatTable(const v1::DescribeResponse& description);

// The same as JSON, as docs/observability.md has it. `now`: when the answer
// came.
std::string FormatJson(const v1::DescribeResponse& description, absl::Time now);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_STATUS_H_
