#ifndef COXSWAIN_SERVER_RPC_CALL_COUNTER_H_
#define COXSWAIN_SERVER_RPC_CALL_COUNTER_H_

#include <memory>

#include "grpcpp/support/server_interceptor.h"
#include "server/telemetry/rpc_metrics.h"

namespace coxswain::server {

// Counts each call of every service once its status is sent, which gates before
// this one may have made: how it ended, and, of a call that is no stream, how
// long it took. `metrics` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
MakeCallCounter(RpcMetrics* metrics);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CALL_COUNTER_H_
