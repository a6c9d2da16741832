#ifndef COXSWAIN_SERVER_RPC_AUTH_INTERCEPTOR_H_
#define COXSWAIN_SERVER_RPC_AUTH_INTERCEPTOR_H_

#include <memory>

#include "base/clock.h"
#include "grpcpp/support/server_interceptor.h"
#include "server/rpc/credentials.h"

namespace coxswain::server {

// Makes what every call of every service passes before the service sees any
// of it: who calls, and whether each message is one that this caller may send.
// Of a message that it may not, the service sees an empty one, and whatever it
// answers, the caller gets the refusal and nothing else.
// `clock`, by which refusals are logged at a rate, outlives it.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
MakeAuthInterceptor(std::shared_ptr<CallerIdentities> identities,
                    const Clock* clock);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_AUTH_INTERCEPTOR_H_
