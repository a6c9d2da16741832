#ifndef COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_H_
#define COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_H_

#include <memory>

#include <gloo/transport/device.h>

#include "client/comm/gloo/transport_control.h"

namespace coxswain {

// Decorates a gloo transport, so that gloo's own algorithms run over buffers
// that report to `control`.
//
// A connection that breaks ends the waits that need it, within a second. Gloo
// alone does not end waits for a message that it had begun to send or to
// receive.
std::shared_ptr<::gloo::transport::Device> WatchDevice(
    std::shared_ptr<::gloo::transport::Device> device,
    std::shared_ptr<TransportControl> control);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_H_
