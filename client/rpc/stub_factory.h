#ifndef COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_
#define COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_

#include <functional>
#include <memory>
#include <string>

#include "base/tls_files.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/retrying_coordinator_stub.h"

namespace coxswain {

// Makes the stub of the coordinator at HOST:PORT, or of several with commas
// between, of which one leads.
using StubFactory = std::function<std::shared_ptr<CoordinatorStub>(
    const std::string& address, const RetryPolicy& policy)>;

// What is used where nobody says otherwise: gRPC, with retries around it.
std::shared_ptr<CoordinatorStub> ConnectCoordinator(
    const std::string& address, const RetryPolicy& policy = {},
    const ClientSecurity& security = {});

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_
