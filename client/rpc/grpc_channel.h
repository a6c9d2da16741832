#ifndef COXSWAIN_CLIENT_RPC_GRPC_CHANNEL_H_
#define COXSWAIN_CLIENT_RPC_GRPC_CHANNEL_H_

#include <memory>
#include <string>

#include "base/tls_files.h"
#include "grpcpp/grpcpp.h"

namespace coxswain {

// A connection of its own to the coordinator at HOST:PORT. gRPC connects, and
// connects again, when there is something to say.
std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(
    const std::string& address, const ClientSecurity& security = {});

// The same to a member of this job that stands in for it.
std::shared_ptr<grpc::Channel> MakeStandInChannel(
    const std::string& address, const ClientSecurity& security,
    const std::string& job);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_GRPC_CHANNEL_H_
