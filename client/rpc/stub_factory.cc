#include "client/rpc/stub_factory.h"

#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/rpc/failover_coordinator_stub.h"
#include "client/rpc/grpc_coordinator_stub.h"

namespace coxswain {

std::shared_ptr<CoordinatorStub> ConnectCoordinator(
    const std::string& address, const RetryPolicy& policy,
    const ClientSecurity& security) {
  std::vector<std::shared_ptr<CoordinatorStub>> stubs;
  for (const absl::string_view one : absl::StrSplit(address, ',')) {
    stubs.push_back(MakeGrpcCoordinatorStub(std::string(one), security));
  }
  auto stub = stubs.size() == 1
                  ? stubs.front()
                  : MakeFailoverCoordinatorStub(std::move(stubs), policy.clock);
  return MakeRetryingCoordinatorStub(std::move(stub), policy);
}

}  // namespace coxswain
