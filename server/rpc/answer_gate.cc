#include "server/rpc/answer_gate.h"

#include <utility>

namespace coxswain::server {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

struct Gate {
  std::function<bool()> may_answer;
  std::shared_ptr<AcceptedConnections> connections;
};

class GateKeeper : public Interceptor {
 public:
  explicit GateKeeper(std::shared_ptr<const Gate> gate)
      : gate_(std::move(gate)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    for (const auto point : {InterceptionHookPoints::PRE_SEND_INITIAL_METADATA,
                             InterceptionHookPoints::PRE_SEND_MESSAGE,
                             InterceptionHookPoints::PRE_SEND_STATUS}) {
      if (!methods->QueryInterceptionHookPoint(point)) continue;
      if (!gate_->may_answer()) gate_->connections->Cut();
      break;
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<const Gate> gate_;
};

class Factory : public ServerInterceptorFactoryInterface {
 public:
  explicit Factory(std::shared_ptr<const Gate> gate) : gate_(std::move(gate)) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* /*info*/) override {
    return new GateKeeper(gate_);  // gRPC owns it.
  }

 private:
  const std::shared_ptr<const Gate> gate_;
};

}  // namespace

std::vector<std::unique_ptr<ServerInterceptorFactoryInterface>> MakeAnswerGate(
    std::function<bool()> may_answer,
    std::shared_ptr<AcceptedConnections> connections) {
  std::vector<std::unique_ptr<ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<Factory>(std::make_shared<const Gate>(
      Gate{std::move(may_answer), std::move(connections)})));
  return factories;
}

}  // namespace coxswain::server
