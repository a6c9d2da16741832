#include "server/rpc/grpc_server.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/process_memory.h"
#include "base/status_macros.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
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
#include "transport/accepted_connections.h"
#include "transport/accepting_server.h"

namespace coxswain::server {
namespace {

// Less serves no job.
constexpr int64_t kLeastHeldBytes = 64 << 20;
// The rest is for what the services keep.
constexpr int64_t kHeldPart = 4;

int64_t MaxHeldBytes(const RpcOptions& rpc) {
  if (rpc.max_held_bytes > 0) return rpc.max_held_bytes;
  return std::max(kLeastHeldBytes, ProcessMemory() / kHeldPart);
}

AcceptingServer::Options OptionsOf(const RpcOptions& rpc,
                                   const SecurityOptions& security) {
  AcceptingServer::Options options;
  options.limits.max_waiting_connections = rpc.max_waiting_connections;
  options.limits.greeting_timeout = rpc.greeting_timeout;
  options.limits.keepalive_timeout = rpc.keepalive_timeout;
  options.credentials = MakeServerCredentials(security);
  options.preface = security.encrypts() ? Preface::kTls : Preface::kHttp2;
  options.handshake_timeout = rpc.greeting_timeout;
  options.max_message_bytes = rpc.max_message_bytes;
  options.max_held_bytes = MaxHeldBytes(rpc);
  options.max_streams_per_connection = rpc.max_streams_per_connection;
  options.keepalive_time = rpc.keepalive_time;
  options.keepalive_timeout = rpc.keepalive_timeout;
  return options;
}

void ConfigureServer(grpc::ServerBuilder* builder) {
  // Both are switches of the whole process and affect servers built later.
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  bulk::ConfigureTransport([builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  });
}

// What each call passes, the first one first in what the server says.
absl::StatusOr<std::vector<
    std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>>
MakeGates(const GrpcServer::MayAnswer& may_answer,
          const std::shared_ptr<AcceptedConnections>& connections,
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
  std::shared_ptr<AcceptedConnections> connections;
  std::unique_ptr<AcceptingServer> server;
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const ListenAddress& address, const RpcOptions& options, const Rooms& rooms,
    const MayAnswer& may_answer, const SecurityOptions& security) {
  COXSWAIN_ASSIGN_OR_RETURN(Listeners listeners, Listen(address));
  auto parts = std::make_unique<Parts>(options, rooms);
  parts->port = listeners.port;
  parts->connections = std::make_shared<AcceptedConnections>(
      ConnectionLimit(options.max_connections));
  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  AcceptingServer::Options accepting = OptionsOf(options, security);
  accepting.listeners = std::move(listeners);
  accepting.connections = parts->connections;
  COXSWAIN_ASSIGN_OR_RETURN(
      auto gates, MakeGates(may_answer, parts->connections, security, rooms));
  if (!gates.empty()) {
    builder.experimental().SetInterceptorCreators(std::move(gates));
  }
  builder.RegisterService(&parts->rendezvous);
  builder.RegisterService(&parts->schedule);
  builder.RegisterService(&parts->store);
  builder.RegisterService(&parts->groups);
  builder.RegisterService(&parts->checkpoints);
  builder.RegisterService(&parts->parameters);
  builder.RegisterService(&parts->journal);
  COXSWAIN_ASSIGN_OR_RETURN(
      parts->server, AcceptingServer::Start(std::move(accepting), &builder));
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(parts)));
}

GrpcServer::GrpcServer(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

GrpcServer::~GrpcServer() = default;

int GrpcServer::port() const { return parts_->port; }

void GrpcServer::Cut() { parts_->connections->Cut(); }

void GrpcServer::StopServing() {
  if (auto* health = parts_->server->grpc().GetHealthCheckService()) {
    health->SetServingStatus(false);
  }
}

void GrpcServer::Shutdown(absl::Duration deadline) {
  parts_->server->Shutdown(deadline);
}

}  // namespace coxswain::server
