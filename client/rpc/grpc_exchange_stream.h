#ifndef COXSWAIN_CLIENT_RPC_GRPC_EXCHANGE_STREAM_H_
#define COXSWAIN_CLIENT_RPC_GRPC_EXCHANGE_STREAM_H_

#include <memory>

#include "client/rpc/parameter_stub.h"
#include "grpcpp/generic/generic_stub.h"

namespace coxswain {

// Opens an Exchange stream over gRPC. `stub` is used during the call only.
std::unique_ptr<ExchangeStream> OpenGrpcExchange(grpc::GenericStub* stub,
                                                 ExchangeCallbacks callbacks);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_GRPC_EXCHANGE_STREAM_H_
