#ifndef COXSWAIN_SERVER_RPC_ANSWER_GATE_H_
#define COXSWAIN_SERVER_RPC_ANSWER_GATE_H_

#include <functional>
#include <memory>
#include <vector>

#include "grpcpp/support/server_interceptor.h"
#include "transport/accepted_connections.h"

namespace coxswain::server {

// What a gRPC server looks through before it says anything to anybody: once
// `may_answer` is false, all connections are cut instead. A coordinator that
// was frozen while another one took over so says nothing, whichever of its
// threads runs first.
std::vector<
    std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
MakeAnswerGate(std::function<bool()> may_answer,
               std::shared_ptr<AcceptedConnections> connections);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_ANSWER_GATE_H_
