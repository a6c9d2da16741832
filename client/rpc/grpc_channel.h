#ifndef COXSWAIN_CLIENT_RPC_GRPC_CHANNEL_H_
#define COXSWAIN_CLIENT_RPC_GRPC_CHANNEL_H_

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"

namespace coxswain {

// A connection of its own to the coordinator at HOST:PORT, without encryption.
// gRPC connects, and connects again, when there is something to say.
std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(
    const std::string& address);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_GRPC_CHANNEL_H_
