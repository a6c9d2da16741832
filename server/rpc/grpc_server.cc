#include "server/rpc/grpc_server.h"

#include <chrono>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/rpc/checkpoint_service.h"
#include "server/rpc/group_service.h"
#include "server/rpc/rendezvous_service.h"
#include "server/rpc/schedule_service.h"
#include "server/rpc/store_service.h"

namespace coxswain::server {
namespace {

void ConfigureServer(const RpcOptions& options, grpc::ServerBuilder* builder) {
  // Both are switches of the whole process and affect servers built later.
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              options.max_streams_per_connection);
  // Otherwise two coordinators could share a port, each with half the workers.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(
      GRPC_ARG_KEEPALIVE_TIME_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.keepalive_time)));
  builder->AddChannelArgument(
      GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.keepalive_timeout)));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Workers probe us as well; without this they would be sent away for it.
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
}

}  // namespace

struct GrpcServer::Parts {
  Parts(const RpcOptions& options, const Rooms& rooms)
      : rendezvous(options, rooms.membership),
        schedule(rooms.plans),
        store(rooms.store, rooms.membership),
        groups(rooms.groups, rooms.membership),
        checkpoints(rooms.checkpoints, rooms.membership) {}

  RendezvousService rendezvous;
  ScheduleService schedule;
  StoreService store;
  GroupService groups;
  CheckpointService checkpoints;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const ListenAddress& address, const RpcOptions& options,
    const Rooms& rooms) {
  auto parts = std::make_unique<Parts>(options, rooms);
  grpc::ServerBuilder builder;
  ConfigureServer(options, &builder);
  builder.AddListeningPort(absl::StrCat(address.host, ":", address.port),
                           grpc::InsecureServerCredentials(), &parts->port);
  builder.RegisterService(&parts->rendezvous);
  builder.RegisterService(&parts->schedule);
  builder.RegisterService(&parts->store);
  builder.RegisterService(&parts->groups);
  builder.RegisterService(&parts->checkpoints);
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr || parts->port == 0) {
    return ExplainListenFailure(address);
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(parts)));
}

GrpcServer::GrpcServer(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

GrpcServer::~GrpcServer() = default;

int GrpcServer::port() const { return parts_->port; }

void GrpcServer::StopServing() {
  if (auto* health = parts_->server->GetHealthCheckService()) {
    health->SetServingStatus(false);
  }
}

void GrpcServer::Shutdown(absl::Duration deadline) {
  // The system clock is gRPC's own here.
  parts_->server->Shutdown(std::chrono::system_clock::now() +
                           absl::ToChronoMilliseconds(deadline));
}

}  // namespace coxswain::server
