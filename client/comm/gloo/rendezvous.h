#ifndef COXSWAIN_CLIENT_COMM_GLOO_RENDEZVOUS_H_
#define COXSWAIN_CLIENT_COMM_GLOO_RENDEZVOUS_H_

#include <memory>

#include <gloo/context.h>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/comm/gloo/transport.h"

namespace coxswain {

// Connects every rank of `options` with every other over TCP; blocks until
// that is done or options.timeout has passed. Addresses are exchanged through
// options.store under "gloo/<options.id>/<rank>".
absl::StatusOr<std::shared_ptr<::gloo::Context>> ConnectFullMesh(
    const CommunicatorOptions& options,
    std::shared_ptr<TransportControl> control);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_RENDEZVOUS_H_
