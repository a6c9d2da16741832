#ifndef COXSWAIN_CLIENT_COMM_GLOO_GLOO_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_GLOO_GLOO_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"

namespace coxswain {

// The CPU back end between hosts: gloo over TCP. Has every ability.
//
// Connects all ranks of options.id through options.store, and blocks until they
// are connected. All ranks must call it with the same id, size and timeout; an
// id is used once. Fails with
//   INVALID_ARGUMENT   options that are not valid
//   DEADLINE_EXCEEDED  ranks did not arrive in time; the message names them
//   UNAVAILABLE        a connection failed
// and with what the store returns, or options.cancel was raised with.
//
// The communicator runs collectives on one thread of its own and messages on
// others; gloo adds one for its sockets. Abort, an error and destruction end
// what is in flight and close the connections; peers that wait for this rank
// get UNAVAILABLE. A rank without operations in flight can leave without harm.
//
// Each rank sends a header of 32 bytes to each other one before a collective's
// data, and both ends of a message to each other before the message's: gloo
// compares nothing, and ends the process where sizes differ. wire_bytes()
// counts payload and these headers, without gloo's own message headers.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectGloo(
    const CommunicatorOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_GLOO_COMMUNICATOR_H_
