#include "server/coordinator.h"

#include <chrono>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/listen_address.h"
#include "server/membership/membership.h"
#include "server/rpc/checkpoint_service.h"
#include "server/rpc/group_service.h"
#include "server/rpc/rendezvous_service.h"
#include "server/rpc/schedule_service.h"
#include "server/rpc/store_service.h"
#include "server/schedule/plan_room.h"
#include "server/state/sqlite_state_store.h"
#include "server/storage/posix_file_system.h"

namespace coxswain::server {
namespace {

// For a coordinator that is destroyed without Shutdown().
constexpr absl::Duration kImpliedShutdown = absl::Seconds(1);

absl::Status CreateFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot create the state folder '",
                                             path, "': ", error.message()));
}

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

absl::Status CoordinatorOptions::Validate() const {
  COXSWAIN_RETURN_IF_ERROR(ParseListenAddress(listen).status());
  if (state_dir.empty()) {
    return absl::InvalidArgumentError("state_dir must name a folder");
  }
  if (tick_interval <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("tick_interval must be more than 0");
  }
  COXSWAIN_RETURN_IF_ERROR(membership.Validate());
  COXSWAIN_RETURN_IF_ERROR(plan.Validate());
  COXSWAIN_RETURN_IF_ERROR(rpc.Validate());
  if (plan.max_plans <= membership.max_jobs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_plans (", plan.max_plans, ") must be more than max_jobs (",
        membership.max_jobs, ")"));
  }
  return absl::OkStatus();
}

// In order of construction: what is below stands on what is above.
struct Coordinator::Parts {
  explicit Parts(const CoordinatorOptions& options_in) : options(options_in) {}

  absl::Status OpenRooms();
  absl::Status Listen();
  void RunTicks();
  void StopTicks();

  const CoordinatorOptions options;
  std::unique_ptr<SqliteStateStore> state;
  std::unique_ptr<PlanRoom> plans;
  std::unique_ptr<Membership> membership;
  std::unique_ptr<StoreRoom> store;
  std::unique_ptr<GroupRoom> groups;
  std::unique_ptr<CheckpointStore> checkpoints;

  std::unique_ptr<RendezvousService> rendezvous_service;
  std::unique_ptr<ScheduleService> schedule_service;
  std::unique_ptr<StoreService> store_service;
  std::unique_ptr<GroupService> group_service;
  std::unique_ptr<CheckpointService> checkpoint_service;
  std::unique_ptr<grpc::Server> server;
  int port = 0;

  std::once_flag shutdown_once;
  Mutex mutex;
  CondVar stopped;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::thread ticks;
};

absl::Status Coordinator::Parts::OpenRooms() {
  COXSWAIN_RETURN_IF_ERROR(CreateFolder(options.state_dir));
  COXSWAIN_ASSIGN_OR_RETURN(state, SqliteStateStore::Open(absl::StrCat(
                                       options.state_dir, "/state.sqlite")));
  COXSWAIN_ASSIGN_OR_RETURN(plans, PlanRoom::Load(options.plan, state.get()));
  COXSWAIN_ASSIGN_OR_RETURN(
      membership,
      Membership::Open(options.membership, {options.clock, options.random,
                                            state.get(), plans.get()}));
  store = std::make_unique<StoreRoom>(options.store, options.clock);
  groups = std::make_unique<GroupRoom>(options.groups, options.clock);
  COXSWAIN_ASSIGN_OR_RETURN(
      checkpoints,
      CheckpointStore::Open(
          PosixFileSystem(), absl::StrCat(options.state_dir, "/checkpoints"),
          options.checkpoints, options.clock, options.random));
  membership->AddObserver(plans.get());
  membership->AddObserver(store.get());
  membership->AddObserver(groups.get());
  membership->AddObserver(checkpoints.get());
  return absl::OkStatus();
}

absl::Status Coordinator::Parts::Listen() {
  rendezvous_service =
      std::make_unique<RendezvousService>(options.rpc, membership.get());
  schedule_service = std::make_unique<ScheduleService>(plans.get());
  store_service = std::make_unique<StoreService>(store.get(), membership.get());
  group_service =
      std::make_unique<GroupService>(groups.get(), membership.get());
  checkpoint_service =
      std::make_unique<CheckpointService>(checkpoints.get(), membership.get());
  COXSWAIN_ASSIGN_OR_RETURN(const ListenAddress address,
                            ParseListenAddress(options.listen));
  grpc::ServerBuilder builder;
  ConfigureServer(options.rpc, &builder);
  builder.AddListeningPort(absl::StrCat(address.host, ":", address.port),
                           grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(rendezvous_service.get());
  builder.RegisterService(schedule_service.get());
  builder.RegisterService(store_service.get());
  builder.RegisterService(group_service.get());
  builder.RegisterService(checkpoint_service.get());
  server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return ExplainListenFailure(address);
  return absl::OkStatus();
}

void Coordinator::Parts::RunTicks() {
  while (true) {
    {
      MutexLock lock(&mutex);
      if (stopped.WaitFor(&mutex, options.tick_interval,
                          [this] { return stop; })) {
        return;
      }
    }
    const absl::Time now = options.clock->Now();
    membership->Tick();
    store->Tick(now);
    groups->Tick(now);
  }
}

void Coordinator::Parts::StopTicks() {
  {
    MutexLock lock(&mutex);
    stop = true;
  }
  stopped.NotifyAll();
  if (ticks.joinable()) ticks.join();
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(
    const CoordinatorOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(options.Validate());
  auto parts = std::make_unique<Parts>(options);
  COXSWAIN_RETURN_IF_ERROR(parts->OpenRooms());
  COXSWAIN_RETURN_IF_ERROR(parts->Listen());
  Parts* const running = parts.get();
  parts->ticks = std::thread([running] { running->RunTicks(); });
  LogInfo("coordinator_started",
          {{"listen", options.listen},
           {"port", parts->port},
           {"cluster_id", parts->membership->cluster_id()},
           {"term", parts->membership->term().value()},
           {"state_dir", options.state_dir}});
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(parts)));
}

Coordinator::Coordinator(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

Coordinator::~Coordinator() { Shutdown(kImpliedShutdown); }

int Coordinator::port() const { return parts_->port; }

void Coordinator::Shutdown(absl::Duration deadline) {
  std::call_once(parts_->shutdown_once, [&] {
    // The system clock is gRPC's own here.
    const auto until =
        std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline);
    if (auto* health = parts_->server->GetHealthCheckService()) {
      health->SetServingStatus(false);
    }
    parts_->StopTicks();
    parts_->membership->Shutdown();
    parts_->server->Shutdown(until);
    LogInfo("coordinator_stopped", {{"port", parts_->port}});
  });
}

}  // namespace coxswain::server
