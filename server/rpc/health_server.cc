#include "server/rpc/health_server.h"

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/frame_guard/frame_guard.h"
#include "base/front_door/admitted_connections.h"
#include "base/front_door/front_door.h"
#include "base/front_door/listen_address.h"
#include "base/reset_watch/reset_watch.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/impl/server_builder_plugin.h"
#include "proto/bulk/compression.h"

namespace coxswain::server {
namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

constexpr char kLiveness[] = "liveness";
constexpr char kReadiness[] = "readiness";
constexpr char kAvailability[] = "availability";
// A request is the name of a service.
constexpr int kMaxMessageBytes = 4096;
constexpr int kMaxStreamsPerConnection = 16;
// A probe comes, asks and goes. Who opens more ends the oldest: probes are
// answered whoever else is there.
constexpr size_t kMaxConnections = 64;
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
  bulk::RefuseCompression(builder);
}

}  // namespace

struct HealthServer::Parts {
  // Answers UNIMPLEMENTED to all that is not the health service.
  grpc::CallbackGenericService nothing_else;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<ResetWatch> watch;
  // Ends first: gRPC would not close what comes after the server's end.
  std::unique_ptr<FrontDoor> door;
};

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(
    absl::string_view listen) {
  COXSWAIN_ASSIGN_OR_RETURN(const ListenAddress address,
                            ParseListenAddress(listen));
  auto listeners = Listen(address);
  if (!listeners.ok()) {
    return absl::Status(
        listeners.status().code(),
        absl::StrCat("for health checks: ", listeners.status().message()));
  }
  auto parts = std::make_unique<Parts>();
  parts->port = listeners->port;
  grpc::ServerBuilder builder;
  Configure(&builder);
  parts->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&parts->nothing_else);
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr) {
    return absl::UnavailableError("gRPC cannot start a server");
  }
  FrameGuard::Works();  // warns if it does not
  parts->watch =
      std::make_unique<ResetWatch>(parts->port, kMaxStreamsPerConnection);
  const auto admit = [acceptor = parts->acceptor.get()](UniqueFd connection) {
    Acceptor::NewConnectionParameters parameters;
    parameters.fd = connection.Release();
    acceptor->HandleNewConnection(&parameters);
  };
  COXSWAIN_ASSIGN_OR_RETURN(
      parts->door,
      FrontDoor::Open(
          *std::move(listeners), FrontDoor::Limits(), admit,
          std::make_shared<AdmittedConnections>(
              kMaxConnections, AdmittedConnections::Full::kEndsOldest)));
  std::unique_ptr<HealthServer> result(new HealthServer(std::move(parts)));
  result->parts_->server->GetHealthCheckService()->SetServingStatus(kLiveness,
                                                                    true);
  result->Set(State::kNeither);
  return result;
}

HealthServer::HealthServer(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

HealthServer::~HealthServer() {
  parts_->door.reset();
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
