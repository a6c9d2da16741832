#ifndef COXSWAIN_CLI_STATUS_H_
#define COXSWAIN_CLI_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// The answer as a table for people, which ends with a newline.
std::string FormatTable(const v1::DescribeResponse& description);

// The same as JSON:
//   {"cluster_id", "term", "jobs": [{"job", "state", "generation",
//    "world_size", "min_world_size", "attempt", "last_event",
//    "plan": {"version", and what AddSettings() of plan_change.h adds},
//    "members": [{"node", "slot", "rank", "local_rank", "incarnation", "host",
//                 "address", "state", "step", "collective_sequence",
//                 "payload_bytes", "wire_bytes", "silent_ms"}],
//    "spares": [as members]}]}
// where world_size is the most that the job takes, min_world_size the fewest
// (0: no fewer), spares wait for the next generation, and incarnations are
// text, since JSON's numbers end at 2^53.
std::string FormatJson(const v1::DescribeResponse& description);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_STATUS_H_
