#ifndef COXSWAIN_CLIENT_COMM_GLOO_RENDEZVOUS_H_
#define COXSWAIN_CLIENT_COMM_GLOO_RENDEZVOUS_H_

#include <memory>

#include <gloo/context.h>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/comm/gloo/transport_control.h"

namespace coxswain {

// Connects every rank of `options` with every other over TCP; blocks until
// that is done, options.timeout has passed or options.cancel is raised.
// Addresses are exchanged through options.store under
// "gloo/<options.id>/<rank>".
//
// Gloo's own wait for a peer that has published its address and then died can
// neither be woken nor bounded by `timeout` (it takes five times that). So it
// runs on a thread of its own, which after an early return goes on until gloo
// gives up; it owns all that it touches.
absl::StatusOr<std::shared_ptr<::gloo::Context>> ConnectFullMesh(
    const CommunicatorOptions& options,
    std::shared_ptr<TransportControl> control);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_RENDEZVOUS_H_
