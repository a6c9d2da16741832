#include "client/rpc/stub_factory.h"

#include "client/rpc/grpc_coordinator_stub.h"

namespace coxswain {

std::shared_ptr<CoordinatorStub> ConnectCoordinator(const std::string& address,
                                                    const RetryPolicy& policy) {
  return MakeRetryingCoordinatorStub(MakeGrpcCoordinatorStub(address), policy);
}

}  // namespace coxswain
