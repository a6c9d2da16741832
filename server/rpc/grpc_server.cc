#include "server/rpc/grpc_server.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/process_memory.h"
#include "base/status_macros.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/support/server_interceptor.h"
#include "server/components/components.h"
#include "server/rpc/auth_interceptor.h"
#include "server/rpc/checkpoint_service.h"
#include "server/rpc/credentials.h"
#include "server/rpc/group_service.h"
#include "server/rpc/journal_service.h"
#include "server/rpc/parameter_service.h"
#include "server/rpc/rendezvous_service.h"
#include "server/rpc/schedule_service.h"
#include "server/rpc/store_service.h"
#include "transport/accepting_server.h"
#include "transport/bulk_channel.h"
#include "transport/connection_acceptor.h"

namespace coxswain::server {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

constexpr int64_t kLeastHeldBytes = 64 << 20;
constexpr int64_t kHeldPart = 4;

absl::StatusOr<AcceptingServer::Options> OptionsOf(
    const RpcOptions& rpc, const SecurityOptions& security) {
  AcceptingServer::Options options;
  options.limits.max_waiting_connections = rpc.max_waiting_connections;
  options.limits.preface_timeout = rpc.preface_timeout;
  options.limits.keepalive_timeout = rpc.keepalive_timeout;
  COXSWAIN_ASSIGN_OR_RETURN(options.credentials,
                            MakeServerCredentials(security));
  options.preface = security.encrypts() ? Preface::kTls : Preface::kHttp2;
  options.handshake_timeout = rpc.preface_timeout;
  options.max_message_bytes = rpc.max_message_bytes;
  options.max_held_bytes = MaxHeldBytes(rpc, ProcessMemory());
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
  bulk::ConfigureBulkChannel([builder](const char* name, int value) {
    builder->AddChannelArgument(name, value);
  });
}

struct AnswerRule {
  std::function<bool()> may_answer;
  std::shared_ptr<AcceptedConnections> connections;
};

// Passed before anything is sent: once `may_answer` is false, all connections
// are cut instead. A coordinator that was frozen while another one took over
// thus sends nothing, whichever of its threads runs first.
class LeaderInterceptor : public Interceptor {
 public:
  explicit LeaderInterceptor(std::shared_ptr<const AnswerRule> rule)
      : rule_(std::move(rule)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    for (const auto point : {InterceptionHookPoints::PRE_SEND_INITIAL_METADATA,
                             InterceptionHookPoints::PRE_SEND_MESSAGE,
                             InterceptionHookPoints::PRE_SEND_STATUS}) {
      if (!methods->QueryInterceptionHookPoint(point)) continue;
      if (!rule_->may_answer()) rule_->connections->Cut();
      break;
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<const AnswerRule> rule_;
};

class LeaderInterceptorFactory : public ServerInterceptorFactoryInterface {
 public:
  explicit LeaderInterceptorFactory(std::shared_ptr<const AnswerRule> rule)
      : rule_(std::move(rule)) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* /*info*/) override {
    return new LeaderInterceptor(rule_);  // gRPC owns it.
  }

 private:
  const std::shared_ptr<const AnswerRule> rule_;
};

// Counts one call, once its status is sent, which interceptors before this one
// may have made: how it ended, and, of a call that is no stream, how long it
// took. The metrics outlive the server.
class CallCounter : public Interceptor {
 public:
  CallCounter(ServerRpcInfo* info, RpcMetrics* metrics, const Clock* clock)
      : metrics_(metrics),
        clock_(clock),
        method_(info->method()),
        stream_(info->type() != ServerRpcInfo::Type::UNARY),
        begun_(clock->Now()) {}

  void Intercept(InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_STATUS)) {
      // The codes are the same numbers in gRPC and in Abseil.
      const auto code =
          static_cast<absl::StatusCode>(batch->GetSendStatus().error_code());
      metrics_->NoteCall(method_, absl::StatusCodeToString(code),
                         clock_->Now() - begun_, stream_);
    }
    batch->Proceed();
  }

 private:
  RpcMetrics* const metrics_;
  const Clock* const clock_;
  const std::string method_;
  const bool stream_;
  const absl::Time begun_;
};

class CallCounterFactory : public ServerInterceptorFactoryInterface {
 public:
  CallCounterFactory(RpcMetrics* metrics, const Clock* clock)
      : metrics_(metrics), clock_(clock) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return new CallCounter(info, metrics_, clock_);  // gRPC owns it.
  }

 private:
  RpcMetrics* const metrics_;
  const Clock* const clock_;
};

// Returns what each call passes; the first one is outermost for answers.
absl::StatusOr<std::vector<std::unique_ptr<ServerInterceptorFactoryInterface>>>
MakeInterceptors(const GrpcServer::MayAnswer& may_answer,
                 const std::shared_ptr<AcceptedConnections>& connections,
                 const SecurityOptions& security, Components* components) {
  std::vector<std::unique_ptr<ServerInterceptorFactoryInterface>> interceptors;
  if (may_answer != nullptr) {
    interceptors.push_back(std::make_unique<LeaderInterceptorFactory>(
        std::make_shared<const AnswerRule>(
            AnswerRule{may_answer, connections})));
  }
  if (security.identifies()) {
    COXSWAIN_ASSIGN_OR_RETURN(
        auto identities, CallerIdentities::Open(security, components->clock));
    interceptors.push_back(
        MakeAuthInterceptor(std::move(identities), components->clock));
  }
  if (components->rpc != nullptr) {
    interceptors.push_back(std::make_unique<CallCounterFactory>(
        components->rpc.get(), components->clock));
  }
  return interceptors;
}

}  // namespace

int64_t MaxHeldBytes(const RpcOptions& rpc, int64_t process_memory) {
  if (rpc.max_held_bytes > 0) return rpc.max_held_bytes;
  return std::max(kLeastHeldBytes, process_memory / kHeldPart);
}

struct GrpcServer::Parts {
  Parts(const RpcOptions& options, bool encrypts, Components* all)
      : rendezvous(options, all->membership.get(), all->schedule.get(),
                   {all->plans.get(), all->telemetry.get(), all->rpc.get()},
                   all->clock, encrypts),
        schedule(all->plans.get(), all->schedule.get(), all->membership.get()),
        store(all->store.get(), all->membership.get()),
        groups(all->groups.get(), all->membership.get()),
        checkpoints(options, all->checkpoints.get(), all->membership.get()),
        parameters(options, all->parameters.get(), all->membership.get()),
        journal({all->journal.get(), all->clock, all->membership->cluster_id(),
                 all->membership->term().value()}) {}

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
    const ListenAddress& address, const RpcOptions& options,
    Components* components, const MayAnswer& may_answer,
    const SecurityOptions& security) {
  COXSWAIN_ASSIGN_OR_RETURN(Listeners listeners, Listen(address));
  auto parts =
      std::make_unique<Parts>(options, security.encrypts(), components);
  parts->port = listeners.port;
  parts->connections = std::make_shared<AcceptedConnections>(
      ConnectionLimit(options.max_connections));
  grpc::ServerBuilder builder;
  ConfigureServer(&builder);
  COXSWAIN_ASSIGN_OR_RETURN(AcceptingServer::Options accepting,
                            OptionsOf(options, security));
  accepting.listeners = std::move(listeners);
  accepting.connections = parts->connections;
  COXSWAIN_ASSIGN_OR_RETURN(
      auto interceptors,
      MakeInterceptors(may_answer, parts->connections, security, components));
  if (!interceptors.empty()) {
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
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
