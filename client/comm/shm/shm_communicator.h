#ifndef COXSWAIN_CLIENT_COMM_SHM_SHM_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_SHM_SHM_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"

namespace coxswain {

// The CPU back end inside one host: shared memory. Has every ability.
//
// Connects all ranks of options.id, which must be processes of one user in one
// network namespace, through options.store, and blocks until they have met. All
// ranks must call it with the same id, size and timeout; an id is used once.
// Fails with
//   INVALID_ARGUMENT   options that are not valid
//   DEADLINE_EXCEEDED  ranks did not arrive in time; the message names them
//   UNAVAILABLE        a rank is not on this host, or has ended
//   RESOURCE_EXHAUSTED no memory or descriptors are left
// and with what the store returns, or options.cancel was raised with.
//
// Buffers of AllocateBuffer are mapped by all ranks, and large collectives on
// them use them in place; other memory is copied through an area of a few
// megabytes a rank. After an error or an abort peers may still write to the
// buffers: their contents are undefined, and the next generation has new ones.
// Shared memory has no name and lives as long as a process has it mapped,
// however processes end.
//
// A small collective with no other before it is begun by the thread that starts
// it and ended by the thread that waits for it; all others run on a thread of
// the communicator's own, messages on further ones. One thread receives peers'
// messages, and notices at once when one has ended.
//
// Headers of collectives are compared in shared memory, without a message.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectShm(
    const CommunicatorOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_SHM_COMMUNICATOR_H_
