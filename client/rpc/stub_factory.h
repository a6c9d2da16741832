#ifndef COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_
#define COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_

#include <functional>
#include <memory>
#include <string>

#include "client/rpc/coordinator_stub.h"
#include "client/rpc/retrying_coordinator_stub.h"

namespace coxswain {

// Makes the stub of the coordinator at HOST:PORT, or of several with commas
// between, of which one leads.
using StubFactory = std::function<std::shared_ptr<CoordinatorStub>(
    const std::string& address, const RetryPolicy& policy)>;

// The usual one: gRPC, with retries around it.
std::shared_ptr<CoordinatorStub> ConnectCoordinator(
    const std::string& address, const RetryPolicy& policy = {});

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_
