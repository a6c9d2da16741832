#ifndef COXSWAIN_CLIENT_COMM_PARAMETER_SERVER_PARAMETER_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_PARAMETER_SERVER_PARAMETER_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Returns a communicator whose ranks have no connections among themselves: each
// pushes its part to the coordinator, which forms the result in the order of
// the ranks and sends it to those that want it. For jobs whose workers cannot
// reach each other, and for small ones: the coordinator carries the traffic of
// all. See docs/parameter-server.md and Communicator.
//
// `options.store` must be of a session (MemberContextSource); otherwise fails
// with INVALID_ARGUMENT. Blocks until all ranks have arrived; fails with
// DEADLINE_EXCEEDED, naming those that have not. A coordinator that is
// restarted does not know the communicator, which then fails with UNAVAILABLE.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectParameterServer(
    const CommunicatorOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_PARAMETER_SERVER_PARAMETER_COMMUNICATOR_H_
