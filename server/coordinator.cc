#include "server/coordinator.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/coordinator_view.h"
#include "server/group/groups.h"
#include "server/journal/journal.h"
#include "server/membership/membership.h"
#include "server/open_state.h"
#include "server/parameter/parameter_room.h"
#include "server/plan/plan_room.h"
#include "server/rpc/grpc_server.h"
#include "server/schedule/schedule_room.h"
#include "server/state/cluster_records.h"
#include "server/state/group_commit.h"
#include "server/state/quarantine.h"
#include "server/state/state_writer.h"
#include "server/storage/fenced_file_system.h"
#include "server/storage/file_system.h"
#include "server/store/key_value_store.h"
#include "server/telemetry/rpc_metrics.h"
#include "server/telemetry/telemetry.h"
#include "transport/listen_address.h"

namespace coxswain::server {
namespace {

// For a coordinator that is destroyed without Shutdown().
constexpr absl::Duration kImpliedShutdown = absl::Seconds(1);

// A file's owner is the only one in the folder beside it. Others may share
// that of a state that can be lost: UNAVAILABLE then, since a client only has
// to ask the other coordinator.
std::unique_ptr<FileSystem> FilesOf(const std::shared_ptr<OwnedState>& state) {
  return std::make_unique<FencedFileSystem>(PosixFileSystem(), [state] {
    if (!state->can_be_lost() || state->Held()) return absl::OkStatus();
    return absl::UnavailableError(
        "this coordinator may not change the checkpoints any more: it leads no "
        "more; ask the one that leads");
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
  // A lease must see several ticks, or each would look like a stand-still.
  if (tick_interval <= absl::ZeroDuration() ||
      tick_interval > membership.lease / 4) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the lease (", absl::FormatDuration(membership.lease),
        ") must be at least four times tick_interval, at which it is looked "
        "at (",
        absl::FormatDuration(tick_interval), ")"));
  }
  COXSWAIN_RETURN_IF_ERROR(security.Validate(clock->WallTime()));
  COXSWAIN_RETURN_IF_ERROR(membership.Validate());
  COXSWAIN_RETURN_IF_ERROR(plan.Validate());
  COXSWAIN_RETURN_IF_ERROR(rpc.Validate());
  return checkpoint_retention.Validate();
}

// In order of construction: what is below stands on what is above.
struct Coordinator::Parts {
  explicit Parts(const CoordinatorOptions& options_in)
      : options(options_in), journal_sink(&journal, options.clock) {}
  ~Parts();

  absl::Status OpenRooms();
  absl::Status Listen();
  void RunTicks();
  void StopTicks();

  const CoordinatorOptions options;
  Journal journal;
  JournalSink journal_sink;
  std::shared_ptr<OwnedState> state;
  std::unique_ptr<GroupCommit> writer;
  std::vector<QuarantinedRecord> quarantined;
  std::unique_ptr<PlanRoom> plans;
  std::unique_ptr<FileSystem> files;
  std::unique_ptr<CheckpointStore> checkpoints;
  std::unique_ptr<Membership> membership;
  std::unique_ptr<ScheduleRoom> schedule;
  std::unique_ptr<KeyValueStore> store;
  std::unique_ptr<Groups> groups;
  std::unique_ptr<ParameterRoom> parameters;
  std::unique_ptr<Telemetry> telemetry;
  RpcMetrics rpc;

  std::unique_ptr<GrpcServer> server;
  absl::Time started;
  std::atomic<int64_t> last_tick{0};  // nanoseconds of the clock

  std::once_flag shutdown_once;
  Mutex mutex;
  CondVar stopped;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  std::thread ticks;
};

// What is still to be written is written, and called back about, while all that
// is called is there.
Coordinator::Parts::~Parts() {
  if (writer != nullptr) WaitUntilWritten(writer.get());
}

absl::Status Coordinator::Parts::OpenRooms() {
  COXSWAIN_RETURN_IF_ERROR(MakeStateFolder(options.state_dir));
  COXSWAIN_ASSIGN_OR_RETURN(state, OpenStateOf(options));
  if (options.repair_state) {
    COXSWAIN_RETURN_IF_ERROR(
        RepairClusterRecords(options.random, &state->store()));
  }
  // Before anything is changed.
  COXSWAIN_RETURN_IF_ERROR(ReadClusterRecords(state->store()).status());
  COXSWAIN_RETURN_IF_ERROR(
      QuarantineDamaged(PlanRoom::TableNames(), &state->store()));
  writer = std::make_unique<GroupCommit>(&state->store());
  COXSWAIN_ASSIGN_OR_RETURN(plans, PlanRoom::Load(options.plan, writer.get()));
  files = FilesOf(state);
  COXSWAIN_ASSIGN_OR_RETURN(
      checkpoints,
      CheckpointStore::Open(
          files.get(), absl::StrCat(options.state_dir, "/checkpoints"),
          options.checkpoints, options.clock, options.random));
  checkpoints->SetDefaultRetention(options.checkpoint_retention);
  // With a new state over old checkpoints, the new run's are the newest.
  COXSWAIN_ASSIGN_OR_RETURN(
      membership, Membership::Open(options.membership,
                                   {options.clock, options.random, writer.get(),
                                    plans.get()},
                                   checkpoints->NewestGeneration()));
  COXSWAIN_RETURN_IF_ERROR(checkpoints->BeginTerm(membership->term()));
  schedule = std::make_unique<ScheduleRoom>(
      options.schedule, ScheduleRoom::Rooms{options.clock, membership.get(),
                                            plans.get(), writer.get()});
  store = std::make_unique<KeyValueStore>(options.store, options.clock,
                                          writer.get());
  groups =
      std::make_unique<Groups>(options.groups, options.clock, writer.get());
  parameters =
      std::make_unique<ParameterRoom>(options.parameters, options.clock);
  telemetry = std::make_unique<Telemetry>(options.telemetry, options.clock);
  membership->AddObserver(telemetry.get());
  membership->AddObserver(plans.get());
  membership->AddObserver(schedule.get());
  membership->AddObserver(store.get());
  membership->AddObserver(groups.get());
  membership->AddObserver(checkpoints.get());
  membership->AddObserver(parameters.get());
  COXSWAIN_RETURN_IF_ERROR(membership->Resume());
  COXSWAIN_ASSIGN_OR_RETURN(quarantined, ListQuarantined(*writer));
  return absl::OkStatus();
}

absl::Status Coordinator::Parts::Listen() {
  COXSWAIN_ASSIGN_OR_RETURN(const ListenAddress address,
                            ParseListenAddress(options.listen));
  Rooms rooms;
  rooms.membership = membership.get();
  rooms.plans = plans.get();
  rooms.schedule = schedule.get();
  rooms.store = store.get();
  rooms.groups = groups.get();
  rooms.checkpoints = checkpoints.get();
  rooms.parameters = parameters.get();
  rooms.telemetry = telemetry.get();
  if (options.count_calls) rooms.rpc = &rpc;
  rooms.journal = &journal;
  rooms.clock = options.clock;
  GrpcServer::MayAnswer may_answer;
  // A file cannot be lost: nothing to ask before each answer.
  if (state->can_be_lost()) {
    may_answer = [state = state] { return state->Held(); };
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      server, GrpcServer::Start(address, options.rpc, rooms, may_answer,
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
    schedule->Tick(now);
    membership->Tick();
    store->Tick(now);
    groups->Tick(now);
    parameters->Tick(now);
    telemetry->Tick(now);
    last_tick = absl::ToUnixNanos(now);
    journal.Tick();
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
  parts->started = options.clock->Now();
  parts->last_tick = absl::ToUnixNanos(parts->started);
  COXSWAIN_RETURN_IF_ERROR(parts->OpenRooms());
  COXSWAIN_RETURN_IF_ERROR(parts->Listen());
  Parts* const running = parts.get();
  parts->ticks = std::thread([running] { running->RunTicks(); });
  LogInfo("coordinator_started",
          {{"listen", options.listen},
           {"port", parts->server->port()},
           {"cluster_id", parts->membership->cluster_id()},
           {"term", parts->membership->term().value()},
           {"state_dir", options.state_dir}});
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(parts)));
}

Coordinator::Coordinator(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

Coordinator::~Coordinator() { Shutdown(kImpliedShutdown); }

int Coordinator::port() const { return parts_->server->port(); }

CoordinatorView Coordinator::view() const {
  CoordinatorView view;
  view.clock = parts_->options.clock;
  view.membership = parts_->membership.get();
  view.plans = parts_->plans.get();
  view.schedule = parts_->schedule.get();
  view.checkpoints = parts_->checkpoints.get();
  view.parameters = parts_->parameters.get();
  view.telemetry = parts_->telemetry.get();
  view.rpc = &parts_->rpc;
  view.journal = &parts_->journal;
  view.quarantined = &parts_->quarantined;
  view.started = parts_->started;
  view.leads = [state = parts_->state] {
    return !state->can_be_lost() || state->Held();
  };
  view.last_tick = [parts = parts_.get()] {
    return absl::FromUnixNanos(parts->last_tick.load());
  };
  return view;
}

void Coordinator::Abandon() {
  parts_->server->Cut();
  Shutdown(absl::ZeroDuration());
}

void Coordinator::Shutdown(absl::Duration deadline) {
  std::call_once(parts_->shutdown_once, [&] {
    parts_->server->StopServing();
    parts_->StopTicks();
    parts_->membership->Shutdown();
    parts_->journal.Close();
    parts_->server->Shutdown(deadline);
    LogInfo("coordinator_stopped", {{"port", parts_->server->port()}});
  });
}

}  // namespace coxswain::server
