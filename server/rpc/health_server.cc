#include "server/rpc/health_server.h"

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/reset_watch/reset_watch.h"
#include "base/status_macros.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/impl/server_builder_plugin.h"
#include "server/listen_address.h"

namespace coxswain::server {
namespace {

constexpr char kLiveness[] = "liveness";
constexpr char kReadiness[] = "readiness";
constexpr char kAvailability[] = "availability";
// A request is the name of a service.
constexpr int kMaxMessageBytes = 4096;
constexpr int kMaxStreamsPerConnection = 16;
constexpr std::chrono::seconds kShutdown{1};

// Keeps out what the process adds to its servers: reflection.
class WithoutPlugins : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*
                         plugins) override {
    plugins->clear();
  }
};

void Configure(grpc::ServerBuilder* builder) {
  // A switch of the whole process, for servers that are built later.
  static std::once_flag once;
  std::call_once(once, [] { grpc::EnableDefaultHealthCheckService(true); });
  builder->SetOption(std::make_unique<WithoutPlugins>());
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              kMaxStreamsPerConnection);
  // Never shared with another process: probes would be answered by either.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace

struct HealthServer::Parts {
  // Answers UNIMPLEMENTED to all that is not the health service.
  grpc::CallbackGenericService nothing_else;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<ResetWatch> watch;
};

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(
    absl::string_view listen) {
  COXSWAIN_ASSIGN_OR_RETURN(const ListenAddress address,
                            ParseListenAddress(listen));
  auto parts = std::make_unique<Parts>();
  grpc::ServerBuilder builder;
  Configure(&builder);
  builder.AddListeningPort(absl::StrCat(address.host, ":", address.port),
                           grpc::InsecureServerCredentials(), &parts->port);
  builder.RegisterCallbackGenericService(&parts->nothing_else);
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr || parts->port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen, " for health checks"));
  }
  parts->watch =
      std::make_unique<ResetWatch>(parts->port, kMaxStreamsPerConnection);
  std::unique_ptr<HealthServer> result(new HealthServer(std::move(parts)));
  result->parts_->server->GetHealthCheckService()->SetServingStatus(kLiveness,
                                                                    true);
  result->Set(State::kNeither);
  return result;
}

HealthServer::HealthServer(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

HealthServer::~HealthServer() {
  // The system clock is gRPC's own here.
  parts_->server->Shutdown(std::chrono::system_clock::now() + kShutdown);
}

int HealthServer::port() const { return parts_->port; }

void HealthServer::Set(State state) {
  auto* const service = parts_->server->GetHealthCheckService();
  service->SetServingStatus(kReadiness, state == State::kLeads);
  service->SetServingStatus(kAvailability, state != State::kNeither);
}

}  // namespace coxswain::server
