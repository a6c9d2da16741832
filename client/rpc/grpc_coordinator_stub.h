#ifndef COXSWAIN_CLIENT_RPC_GRPC_COORDINATOR_STUB_H_
#define COXSWAIN_CLIENT_RPC_GRPC_COORDINATOR_STUB_H_

#include <memory>
#include <string>

#include "client/rpc/coordinator_stub.h"

namespace coxswain {

// Speaks to the coordinator at HOST:PORT over gRPC, without encryption. Makes
// no call by itself; gRPC connects, and connects again, when there is one.
std::shared_ptr<CoordinatorStub> MakeGrpcCoordinatorStub(
    const std::string& address);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_GRPC_COORDINATOR_STUB_H_
