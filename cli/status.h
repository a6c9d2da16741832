#ifndef COXSWAIN_CLI_STATUS_H_
#define COXSWAIN_CLI_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "cli/options.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// Runs `coxswain status`: calls the coordinator and prints to stdout.
absl::Status ShowStatus(const StatusOptions& options);

// Returns the coordinator's description of its jobs, with the timings of the
// last `steps` steps of each rank. `cancel` may be null. Errors name the
// coordinator and, for a job that it does not know, the jobs that it has.
absl::StatusOr<v1::DescribeResponse> AskStatus(const StatusOptions& options,
                                               CoordinatorStub& stub,
                                               CancelSignal* cancel,
                                               int steps = 0);

// Returns the answer for display, which ends with a newline: the members of one
// job, or a line for each of several. `now`: when it arrived. The commands that
// it names are for this coordinator; empty: that of the environment.
std::string FormatTable(const v1::DescribeResponse& description, absl::Time now,
                        absl::string_view coordinator = "");

// Returns the same as JSON, in the form of docs/observability.md. `now`: when
// the answer arrived.
std::string FormatJson(const v1::DescribeResponse& description, absl::Time now);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_STATUS_H_
