#include "server/rpc/parameter_service.h"

#include "server/rpc/exchange_call.h"

namespace coxswain::server {

ParameterService::ParameterService(const RpcOptions& options,
                                   ParameterStore* parameters,
                                   const FenceValidator* validator)
    : options_(options), parameters_(parameters), validator_(validator) {}

ParameterService::~ParameterService() = default;

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
ParameterService::Exchange(grpc::CallbackServerContext* context) {
  return ExchangeCall::Start(options_, parameters_, validator_, context);
}

}  // namespace coxswain::server
