#ifndef COXSWAIN_CLIENT_COMM_TCP_TCP_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_TCP_TCP_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/comm/tcp/tcp_collectives.h"

namespace coxswain {

// A CPU back end between hosts: TCP sockets of its own. Has every ability.
//
// Connects all ranks of options.id through options.store, each with each other
// one, and blocks until they have met. All ranks must call it with the same id,
// size, timeout and tuning; an id is used once.
//   INVALID_ARGUMENT    options that make no sense
//   DEADLINE_EXCEEDED   not all came in time; the message names who did not
//   UNAVAILABLE         a rank cannot be reached, or another process is there
//   RESOURCE_EXHAUSTED  no descriptors are left
// and whatever the store returns, or options.cancel was raised with.
//
// A small collective that finds nothing before it is begun by the thread that
// starts it and ended by the thread that waits for it; all others run on a
// thread of the communicator's own, messages on further ones. One thread waits
// for messages, and notices when a peer has ended.
//
// Abort, an error and destruction notify the peers, which end what waits for
// this rank with UNAVAILABLE and the reason. A rank none of whose operations is
// in flight, and whose channels are drained, can leave: what it has sent still
// arrives.
//
// The first frame of each collective carries its header (opening.h).
// wire_bytes() counts payload, frames and control, without what the kernel adds
// and without what connecting and encryption take. With options.encrypts all
// that travels is encrypted (tls_keys.h); UNAVAILABLE without a key, and
// FAILED_PRECONDITION where only some of the ranks encrypt.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectTcp(
    const CommunicatorOptions& options);

// The same with other thresholds, for tests and measurements.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectTcpTuned(
    const CommunicatorOptions& options, const TcpTuning& tuning);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TCP_COMMUNICATOR_H_
