#include "server/rpc/grpc_server.h"

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/frame_guard/frame_guard.h"
#include "base/front_door/admitted_connections.h"
#include "base/front_door/connection_limit.h"
#include "base/front_door/front_door.h"
#include "base/reset_watch/reset_watch.h"
#include "base/status_macros.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "proto/bulk/compression.h"
#include "proto/bulk/transport.h"
#include "server/rpc/answer_gate.h"
#include "server/rpc/call_counter.h"
#include "server/rpc/caller_gate.h"
#include "server/rpc/checkpoint_service.h"
#include "server/rpc/credentials.h"
#include "server/rpc/group_service.h"
#include "server/rpc/journal_service.h"
#include "server/rpc/parameter_service.h"
#include "server/rpc/rendezvous_service.h"
#include "server/rpc/schedule_service.h"
#include "server/rpc/store_service.h"

namespace coxswain::server {
namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
using AcceptorType =
    grpc::ServerBuilder::experimental_type::ExternalConnectionType;

FrontDoor::Limits DoorLimits(const RpcOptions& options) {
  FrontDoor::Limits limits;
  limits.max_waiting_connections = options.max_waiting_connections;
  limits.greeting_timeout = options.greeting_timeout;
  limits.keepalive_timeout = options.keepalive_timeout;
  return limits;
}

void ConfigureServer(const RpcOptions& options, grpc::ServerBuilder* builder) {
  // Both are switches of the whole process and affect servers built later.
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  builder->SetMaxReceiveMessageSize(options.max_message_bytes);
  bulk::RefuseCompression(builder);
  bulk::ConfigureTransport([builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  });
  // Of TLS, once the front door has seen its first bytes.
  builder->AddChannelArgument(
      GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.greeting_timeout)));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              options.max_streams_per_connection);
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

// What each call passes, the first one first in what the server says.
absl::StatusOr<std::vector<
    std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>>
MakeGates(const GrpcServer::MayAnswer& may_answer,
          const std::shared_ptr<AdmittedConnections>& connections,
          const SecurityOptions& security, const Rooms& rooms) {
  std::vector<
      std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
      gates;
  if (may_answer != nullptr) gates = MakeAnswerGate(may_answer, connections);
  if (security.identifies()) {
    COXSWAIN_ASSIGN_OR_RETURN(auto identities,
                              CallerIdentities::Open(security, rooms.clock));
    gates.push_back(MakeCallerGate(std::move(identities), rooms.clock));
  }
  if (rooms.rpc != nullptr) gates.push_back(MakeCallCounter(rooms.rpc));
  return gates;
}

}  // namespace

struct GrpcServer::Parts {
  Parts(const RpcOptions& options, const Rooms& rooms)
      : rendezvous(options, rooms.membership, rooms.schedule,
                   {rooms.plans, rooms.telemetry, rooms.rpc}, rooms.clock),
        schedule(rooms.plans, rooms.schedule, rooms.membership),
        store(rooms.store, rooms.membership),
        groups(rooms.groups, rooms.membership),
        checkpoints(options, rooms.checkpoints, rooms.membership),
        parameters(options, rooms.parameters, rooms.membership),
        journal({rooms.journal, rooms.clock, rooms.membership->cluster_id(),
                 rooms.membership->term().value()}) {}

  RendezvousService rendezvous;
  ScheduleService schedule;
  StoreService store;
  GroupService groups;
  CheckpointService checkpoints;
  ParameterService parameters;
  JournalService journal;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;
  std::shared_ptr<AdmittedConnections> connections;
  std::unique_ptr<ResetWatch> watch;
  std::unique_ptr<FrameGuard> guard;  // null: nobody is asked who he is
  // Ends first: gRPC would not close what comes after the server's end.
  std::unique_ptr<FrontDoor> door;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const ListenAddress& address, const RpcOptions& options, const Rooms& rooms,
    const MayAnswer& may_answer, const SecurityOptions& security) {
  COXSWAIN_ASSIGN_OR_RETURN(Listeners listeners, Listen(address));
  auto parts = std::make_unique<Parts>(options, rooms);
  parts->port = listeners.port;
  parts->connections = std::make_shared<AdmittedConnections>(
      ConnectionLimit(options.max_connections));
  grpc::ServerBuilder builder;
  ConfigureServer(options, &builder);
  COXSWAIN_ASSIGN_OR_RETURN(
      auto gates, MakeGates(may_answer, parts->connections, security, rooms));
  if (!gates.empty()) {
    builder.experimental().SetInterceptorCreators(std::move(gates));
  }
  parts->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      AcceptorType::FROM_FD, MakeServerCredentials(security));
  builder.RegisterService(&parts->rendezvous);
  builder.RegisterService(&parts->schedule);
  builder.RegisterService(&parts->store);
  builder.RegisterService(&parts->groups);
  builder.RegisterService(&parts->checkpoints);
  builder.RegisterService(&parts->parameters);
  builder.RegisterService(&parts->journal);
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr) {
    return absl::UnavailableError("gRPC cannot start a server");
  }
  parts->watch = std::make_unique<ResetWatch>(
      parts->port, options.max_streams_per_connection);
  if (FrameGuard::Works() && security.identifies()) {
    parts->guard = std::make_unique<FrameGuard>(parts->port);
  }
  const auto admit = [acceptor = parts->acceptor.get()](UniqueFd connection) {
    Acceptor::NewConnectionParameters parameters;
    parameters.fd = connection.Release();
    acceptor->HandleNewConnection(&parameters);
  };
  COXSWAIN_ASSIGN_OR_RETURN(
      parts->door,
      FrontDoor::Open(std::move(listeners), DoorLimits(options), admit,
                      parts->connections,
                      security.encrypts() ? Greeting::kTls : Greeting::kHttp2));
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(parts)));
}

GrpcServer::GrpcServer(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

GrpcServer::~GrpcServer() = default;

int GrpcServer::port() const { return parts_->port; }

void GrpcServer::Cut() { parts_->connections->Cut(); }

void GrpcServer::StopServing() {
  if (auto* health = parts_->server->GetHealthCheckService()) {
    health->SetServingStatus(false);
  }
}

void GrpcServer::Shutdown(absl::Duration deadline) {
  parts_->door.reset();
  // The system clock is gRPC's own here.
  parts_->server->Shutdown(std::chrono::system_clock::now() +
                           absl::ToChronoMilliseconds(deadline));
}

}  // namespace coxswain::server
