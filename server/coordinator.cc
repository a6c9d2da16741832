#include "server/coordinator.h"

#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/components/components.h"
#include "server/open_state.h"
#include "server/rpc/grpc_server.h"
#include "server/state/cluster_records.h"
#include "server/state/earlier_records.h"
#include "server/state/group_commit.h"
#include "server/state/state_writer.h"
#include "server/storage/fenced_file_system.h"
#include "server/storage/file_system.h"
#include "transport/listen_address.h"

namespace coxswain::server {
namespace {

// For a coordinator that is destroyed without Shutdown().
constexpr absl::Duration kImpliedShutdown = absl::Seconds(1);

// The owner of a file is the only user of the folder beside it. Others may
// share the folder of a state that can be lost: UNAVAILABLE then, since a
// client only has to ask the other coordinator.
std::unique_ptr<FileSystem> FilesOf(const std::shared_ptr<OwnedState>& state) {
  return std::make_unique<FencedFileSystem>(PosixFileSystem(), [state] {
    if (!state->can_be_lost() || state->Held()) return absl::OkStatus();
    return absl::UnavailableError(
        "this coordinator may not change the checkpoints any more: it does "
        "not lead; ask the one that leads");
  });
}

absl::StatusOr<std::shared_ptr<OwnedState>> OpenStateOf(
    const CoordinatorOptions& options) {
  if (options.state != nullptr) return options.state;
  StateLocation location;
  location.folder = options.state_dir;
  AcquireOptions acquire;
  acquire.clock = options.clock;
  COXSWAIN_ASSIGN_OR_RETURN(auto state, AcquireState(location, acquire));
  return state;
}

}  // namespace

absl::Status CoordinatorOptions::Validate() const {
  COXSWAIN_RETURN_IF_ERROR(ParseListenAddress(listen).status());
  if (state_dir.empty()) {
    return absl::InvalidArgumentError("state_dir must name a folder");
  }
  // Several ticks must fit into a lease, or each would look like a pause of
  // this process.
  if (tick_interval <= absl::ZeroDuration() ||
      tick_interval > membership.lease / 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("the lease (", absl::FormatDuration(membership.lease),
                     ") must be at least four times tick_interval (",
                     absl::FormatDuration(tick_interval), ")"));
  }
  COXSWAIN_RETURN_IF_ERROR(security.Validate(clock->WallTime()));
  COXSWAIN_RETURN_IF_ERROR(membership.Validate());
  COXSWAIN_RETURN_IF_ERROR(plan.Validate());
  COXSWAIN_RETURN_IF_ERROR(rpc.Validate());
  return checkpoint_retention.Validate();
}

// In order of construction: what is below uses what is above.
struct Coordinator::Parts {
  explicit Parts(const CoordinatorOptions& options);
  ~Parts();

  absl::Status OpenComponents();
  absl::Status Listen();
  void RunTicks();
  void StopTicks();

  const CoordinatorOptions options;
  std::shared_ptr<OwnedState> state;
  std::unique_ptr<GroupCommit> writer;
  std::unique_ptr<FileSystem> files;
  Components components;
  std::unique_ptr<JournalSink> journal_sink;
  std::unique_ptr<GrpcServer> server;

  std::once_flag shutdown_once;
  Mutex mutex;
  CondVar stopped;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::thread ticks;
};

Coordinator::Parts::Parts(const CoordinatorOptions& options_in)
    : options(options_in) {
  components.clock = options.clock;
  components.started = options.clock->Now();
  components.last_tick_ns = absl::ToUnixNanos(components.started);
  components.journal = std::make_unique<Journal>();
  journal_sink =
      std::make_unique<JournalSink>(components.journal.get(), options.clock);
}

// Writes what is queued, and runs its callbacks, while everything that they
// call exists.
Coordinator::Parts::~Parts() {
  if (writer != nullptr) WaitUntilWritten(writer.get());
}

absl::Status Coordinator::Parts::OpenComponents() {
  Components& all = components;
  COXSWAIN_RETURN_IF_ERROR(MakeStateFolder(options.state_dir));
  COXSWAIN_ASSIGN_OR_RETURN(state, OpenStateOf(options));
  all.state = state;
  if (options.repair_state) {
    COXSWAIN_RETURN_IF_ERROR(
        RepairClusterRecords(options.random, &state->store()));
  }
  // Before anything is changed.
  COXSWAIN_RETURN_IF_ERROR(ReadClusterRecords(state->store()).status());
  COXSWAIN_RETURN_IF_ERROR(
      TakeOverRecords(PlanStore::TableNames(), &state->store()));
  writer = std::make_unique<GroupCommit>(&state->store());
  COXSWAIN_ASSIGN_OR_RETURN(all.plans,
                            PlanStore::Load(options.plan, writer.get()));
  files = FilesOf(state);
  COXSWAIN_ASSIGN_OR_RETURN(
      all.checkpoints,
      CheckpointStore::Open(
          files.get(), absl::StrCat(options.state_dir, "/checkpoints"),
          options.checkpoints, options.clock, options.random));
  all.checkpoints->SetDefaultRetention(options.checkpoint_retention);
  // With a new state over old checkpoints, the new run's are the newest.
  COXSWAIN_ASSIGN_OR_RETURN(
      all.membership, Membership::Open(options.membership,
                                       {options.clock, options.random,
                                        writer.get(), all.plans.get()},
                                       all.checkpoints->NewestGeneration()));
  COXSWAIN_RETURN_IF_ERROR(all.checkpoints->BeginTerm(all.membership->term()));
  all.schedule = std::make_unique<ScheduleRegistry>(
      options.schedule,
      ScheduleRegistry::Dependencies{options.clock, all.membership.get(),
                                     all.plans.get(), writer.get()});
  all.store = std::make_unique<KeyValueStore>(options.store, options.clock,
                                              writer.get());
  all.groups =
      std::make_unique<Groups>(options.groups, options.clock, writer.get());
  all.parameters =
      std::make_unique<ParameterStore>(options.parameters, options.clock);
  all.telemetry = std::make_unique<Telemetry>(options.telemetry, options.clock);
  if (options.count_calls) all.rpc = std::make_unique<RpcMetrics>();
  all.membership->AddObserver(all.telemetry.get());
  all.membership->AddObserver(all.plans.get());
  all.membership->AddObserver(all.schedule.get());
  all.membership->AddObserver(all.store.get());
  all.membership->AddObserver(all.groups.get());
  all.membership->AddObserver(all.checkpoints.get());
  all.membership->AddObserver(all.parameters.get());
  COXSWAIN_RETURN_IF_ERROR(all.membership->Resume());
  COXSWAIN_ASSIGN_OR_RETURN(all.quarantined, ListQuarantined(*writer));
  return absl::OkStatus();
}

absl::Status Coordinator::Parts::Listen() {
  COXSWAIN_ASSIGN_OR_RETURN(const ListenAddress address,
                            ParseListenAddress(options.listen));
  GrpcServer::MayAnswer may_answer;
  // A file cannot be lost: nothing to check before each answer.
  if (state->can_be_lost()) {
    may_answer = [state = state] { return state->Held(); };
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      server, GrpcServer::Start(address, options.rpc, &components, may_answer,
                                options.security));
  return absl::OkStatus();
}

void Coordinator::Parts::RunTicks() {
  while (true) {
    {
      MutexLock lock(&mutex);
      if (stopped.WaitFor(
              &mutex, options.tick_interval,
              [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stop; })) {
        return;
      }
    }
    const absl::Time now = options.clock->Now();
    // First: tickets are signs of life as well.
    components.schedule->Tick(now);
    components.membership->Tick();
    components.store->Tick(now);
    components.groups->Tick(now);
    components.parameters->Tick(now);
    components.telemetry->Tick(now);
    components.last_tick_ns = absl::ToUnixNanos(now);
    components.journal->Tick();
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
  COXSWAIN_RETURN_IF_ERROR(parts->OpenComponents());
  COXSWAIN_RETURN_IF_ERROR(parts->Listen());
  Parts* const running = parts.get();
  parts->ticks = std::thread([running] { running->RunTicks(); });
  LogInfo("coordinator_started",
          {{"listen", options.listen},
           {"port", parts->server->port()},
           {"cluster_id", parts->components.membership->cluster_id()},
           {"term", parts->components.membership->term().value()},
           {"state_dir", options.state_dir}});
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(parts)));
}

Coordinator::Coordinator(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

Coordinator::~Coordinator() { Shutdown(kImpliedShutdown); }

int Coordinator::port() const { return parts_->server->port(); }

const Components& Coordinator::view() const { return parts_->components; }

void Coordinator::Abandon() {
  parts_->server->Cut();
  Shutdown(absl::ZeroDuration());
}

void Coordinator::Shutdown(absl::Duration deadline) {
  std::call_once(parts_->shutdown_once, [&] {
    parts_->server->StopServing();
    parts_->StopTicks();
    parts_->components.membership->Shutdown();
    parts_->components.journal->Close();
    parts_->server->Shutdown(deadline);
    LogInfo("coordinator_stopped", {{"port", parts_->server->port()}});
  });
}

}  // namespace coxswain::server
