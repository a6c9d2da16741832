#ifndef COXSWAIN_CLIENT_RPC_GRPC_COORDINATOR_STUB_H_
#define COXSWAIN_CLIENT_RPC_GRPC_COORDINATOR_STUB_H_

#include <memory>
#include <string>

#include "base/tls_files.h"
#include "client/rpc/coordinator_stub.h"

namespace coxswain {

// Returns a stub of the coordinator at HOST:PORT over gRPC. It makes no call by
// itself; gRPC connects, and connects again, for each call.
std::shared_ptr<CoordinatorStub> MakeGrpcCoordinatorStub(
    const std::string& address, const ClientSecurity& security = {});

// Returns the same to the fallback coordinator of this job.
std::shared_ptr<CoordinatorStub> MakeFallbackStub(
    const std::string& address, const ClientSecurity& security,
    const std::string& job);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_GRPC_COORDINATOR_STUB_H_
