#include "client/session/session.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/host_name.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/tls_files.h"
#include "base/wait_count.h"
#include "client/comm/backends/registry.h"
#include "client/comm/nccl/nccl_library.h"
#include "client/comm/nccl/nccl_status.h"
#include "client/comm/work.h"
#include "client/rpc/stub_factory.h"
#include "client/session/job.h"
#include "client/session/join.h"
#include "client/session/session_core.h"
#include "proto/types.pb.h"
#include "schedule/plan_words.h"
#include "schedule/schedule_wire.h"
#include "transport/error_detail.h"

namespace coxswain {
namespace {

constexpr absl::Duration kFailedLeaveTimeout = absl::Seconds(5);
constexpr absl::Duration kDestructorTimeout = absl::Seconds(2);

// Returns the launcher's number if it gives one, or else the program's.
absl::StatusOr<int> Agreed(int launcher, int program,
                           absl::string_view variable, absl::string_view what) {
  if (launcher > 0 && program > 0 && launcher != program) {
    return absl::InvalidArgumentError(
        absl::StrCat("the launcher ", what, " ", launcher, " workers (",
                     variable, "), the program asks for ", program));
  }
  return std::max(launcher, program);
}

absl::Status FillWorldSizes(const JobManifest& manifest,
                            SessionOptions* options) {
  COXSWAIN_ASSIGN_OR_RETURN(options->world_size,
                            Agreed(options->world_size, manifest.world_size,
                                   "COXSWAIN_WORLD_SIZE", "starts"));
  if (options->world_size < 1) {
    return absl::InvalidArgumentError(
        "the world size is not known: set COXSWAIN_WORLD_SIZE, "
        "SessionOptions::world_size or JobManifest::world_size");
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      options->min_world_size,
      Agreed(options->min_world_size, manifest.min_world_size,
             "COXSWAIN_MIN_WORLD_SIZE", "needs"));
  if (options->min_world_size == 0) {
    options->min_world_size = options->world_size;
  }
  if (options->min_world_size < 1 ||
      options->min_world_size > options->world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job is to run with at least ", options->min_world_size,
        " workers and at most ", options->world_size,
        ": set COXSWAIN_MIN_WORLD_SIZE between 1 and COXSWAIN_WORLD_SIZE"));
  }
  return absl::OkStatus();
}

// Returns the text of a mesh in the one form in which it is compared.
absl::StatusOr<std::string> MeshText(absl::string_view text) {
  if (text.empty()) return "";
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(text));
  return mesh.ToString();
}

absl::Status FillMesh(const JobManifest& manifest, SessionOptions* options) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string program, MeshText(manifest.mesh));
  COXSWAIN_ASSIGN_OR_RETURN(options->mesh, MeshText(options->mesh));
  if (options->mesh.empty()) options->mesh = program;
  if (!program.empty() && program != options->mesh) {
    return absl::InvalidArgumentError(
        absl::StrCat("the launcher gives the mesh ", options->mesh,
                     " (COXSWAIN_MESH), the program asks for ", program));
  }
  if (options->mesh.empty()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh,
                            ParseJobMesh(options->mesh, options->min_world_size,
                                         options->world_size));
  return CheckTrainable(mesh, !manifest.terms.pipeline.empty());
}

// Returns the mesh of a generation.
absl::StatusOr<Mesh> FittedMesh(const SessionOptions& options,
                                const v1::JoinResponse& joined) {
  if (options.mesh.empty()) return Mesh();
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(options.mesh));
  return mesh.Fit(joined.world_size());
}

absl::Status FillDefaults(JobManifest* manifest, SessionOptions* options) {
  if (options->coordinator.empty() || options->job.empty()) {
    return absl::InvalidArgumentError(
        "SessionOptions need the coordinator's HOST:PORT and the job's name");
  }
  COXSWAIN_ASSIGN_OR_RETURN(options->backend, BackendName(options->backend));
  COXSWAIN_RETURN_IF_ERROR(FillWorldSizes(*manifest, options));
  COXSWAIN_RETURN_IF_ERROR(
      schedule::ApplyPlanWords(options->plan_overrides, manifest));
  COXSWAIN_RETURN_IF_ERROR(manifest->terms.Validate());
  COXSWAIN_RETURN_IF_ERROR(FillMesh(*manifest, options));
  if (options->device.kind == Device::Kind::kCuda &&
      options->nccl_version.empty()) {
    const auto nccl = LoadNccl();
    options->nccl_version =
        nccl.ok() ? NcclVersionText((*nccl)->version()) : "none";
  }
  if (options->host.empty()) options->host = HostName();
  if (options->host.empty()) options->host = "localhost";
  if (options->identity.node.empty()) options->identity.node = options->host;
  if (options->incarnation == Incarnation()) {
    options->incarnation = Incarnation(options->random->NextId());
  }
  return absl::OkStatus();
}

// Returns whether a worker that has the state of a job was taken into a
// generation that ended before it could attach: a survivor, whom the next one
// waits for as long as it does not leave.
bool IsForNext(const SessionOptions& options, const absl::Status& attached) {
  if (options.after_generation == 0) return false;
  const v1::ErrorDetail detail = DetailOf(attached);
  return detail.has_member_lost() || detail.has_schedule_mismatch() ||
         detail.stale_fence().field() == "generation";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Join(
    SessionOptions options, const JobManifest& program) {
  auto manifest = std::make_shared<JobManifest>(program);
  COXSWAIN_RETURN_IF_ERROR(FillDefaults(manifest.get(), &options));
  // gRPC would fail to connect, without a reason.
  if (options.stub_factory == nullptr) {
    COXSWAIN_RETURN_IF_ERROR(
        CheckTlsFiles(options.security.tls, Clock::Real()->WallTime()));
  }
  std::shared_ptr<CoordinatorStub> stub =
      options.stub_factory
          ? options.stub_factory(options.coordinator)
          : ConnectWithoutRetries(options.coordinator, options.security,
                                  options.clock);
  int64_t entered = 0;
  std::unique_ptr<Core> unbegun;  // of survivors alone
  return Core::Join({std::move(options), std::move(manifest), std::move(stub)},
                    /*cancel=*/nullptr, &entered, &unbegun);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Core::Join(
    Request asked, const std::shared_ptr<CancelSignal>& cancel,
    int64_t* entered, std::unique_ptr<Core>* unbegun) {
  v1::JoinRequest request = MakeJoinRequest(asked.options, *asked.manifest);
  SessionOptions joining = asked.options;
  if (cancel != nullptr) joining.cancel = cancel;
  COXSWAIN_ASSIGN_OR_RETURN(v1::JoinResponse joined,
                            JoinJob(joining, *asked.stub, &request));
  asked.options.address = request.address();
  std::shared_ptr<const DataKey> key = TakeDataKey(asked.options, &joined);
  const auto plan = schedule::PlanOfCoordinator(joined.plan());
  const auto mesh = FittedMesh(asked.options, joined);
  auto core = std::make_unique<Core>(std::move(asked), joined,
                                     plan.ok() ? *plan : schedule::Plan(),
                                     mesh.value_or(Mesh()), std::move(key));
  core->entered = *entered = core->generation;
  absl::Status attached = core->Attach(joined);
  if (attached.ok()) attached = plan.status();
  if (attached.ok()) attached = mesh.status();
  if (attached.ok()) attached = CheckAddresses(joined);
  if (!attached.ok()) {
    if (IsForNext(core->request.options, attached)) {
      *unbegun = std::move(core);
    } else {
      core->Leave(
              Departure::Failed(absl::StrCat("could not begin the generation: ",
                                             attached.message()),
                                kDestructorTimeout))
          .IgnoreError();
    }
    return attached;
  }
  LogInfo("joined", {{"job", core->request.options.job},
                     {"rank", core->rank},
                     {"world_size", core->members.world_size()},
                     {"generation", core->generation},
                     {"after_generation", core->previous.generation},
                     {"reason", core->previous.reason},
                     {"address", core->request.options.address}});
  return std::unique_ptr<Session>(new Session(std::move(core)));
}

absl::StatusOr<std::unique_ptr<Session>> Session::Rejoin() {
  return core_->Rejoin();
}

Session::Session(std::unique_ptr<Core> core) : core_(std::move(core)) {}

Session::~Session() {
  core_
      ->Leave(Core::Departure::Failed("the process ended without leaving",
                                      kDestructorTimeout))
      .IgnoreError();
}

int Session::rank() const { return core_->rank; }
int Session::world_size() const { return core_->members.world_size(); }
int Session::local_rank() const { return core_->request.options.local_rank; }
int64_t Session::generation() const { return core_->generation; }
const Mesh& Session::mesh() const { return core_->mesh; }
const std::string& Session::job() const { return core_->request.options.job; }
const schedule::Plan& Session::plan() const { return core_->plan; }
std::set<std::string> Session::ChangedByOperator(
    const schedule::Plan& plan) const {
  return NotAskedFor(core_->request.options.plan_overrides,
                     *core_->request.manifest, plan);
}
absl::StatusOr<std::vector<JobMember>> Session::Members() {
  return core_->members.All();
}
const PreviousGeneration& Session::previous() const { return core_->previous; }
SessionEvents& Session::events() { return core_->events(); }
ScheduleClient& Session::schedule() { return core_->schedule(); }
StoreClient& Session::store() { return core_->store; }
CheckpointClient& Session::checkpoints() { return core_->checkpoints; }
absl::Status Session::status() const { return core_->status(); }

void Session::ReportProgress(int64_t optimizer_steps) {
  core_->step.store(optimizer_steps);
}

void Session::ReportWait(bool waits) { core_->waits_elsewhere.store(waits); }

void Session::SetPipelinePlace(
    std::function<std::optional<PipelinePlace>()> source) {
  core_->SetPipelinePlace(std::move(source));
}

void Session::ReportNewcomers(std::vector<NewcomerReport> reports) {
  core_->ReportNewcomers(std::move(reports));
}

void Session::ReportErrorNorm(double norm, int64_t step) {
  core_->ReportErrorNorm(norm, step);
}

void Session::ReportBrokenPeers(const std::vector<int>& ranks) {
  core_->peer_reports().Report(ranks);
}

void Session::OnAbort(std::function<void(const absl::Status&)> callback) {
  core_->OnAbort(std::move(callback));
}

absl::Status Session::Leave(absl::string_view reason, bool failed) {
  if (failed) {
    return core_->Leave(
        Core::Departure::Failed(std::string(reason), kFailedLeaveTimeout));
  }
  Core::Departure departure;
  departure.reason = std::string(reason);
  // A coordinator that is being started again is waited for, or the worker
  // would count as lost after all its work.
  departure.timeout =
      std::max(kFailedLeaveTimeout, core_->request.options.reattach_grace);
  return core_->Leave(departure);
}

// ---- what asks the coordinator ----

absl::StatusOr<std::shared_ptr<ProcessGroup>> Session::World() {
  v1::CreateGroupRequest request;
  request.set_name(std::string(kWorldGroup));
  request.set_all_ranks(true);
  return core_->Declare(std::move(request));
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> Session::CreateGroup(
    absl::string_view name, const std::vector<int>& ranks) {
  v1::CreateGroupRequest request;
  request.set_name(std::string(name));
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return core_->Declare(std::move(request));
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> Session::Core::Declare(
    v1::CreateGroupRequest request) {
  *request.mutable_fence() = member->NewRequest();
  // The others declare it, too, and then connect.
  const WaitCount::Scope waits(member->waits().get());
  const auto response = member->stub().CreateGroup(request, member->Call());
  if (!response.ok()) return member->Outcome(response.status());
  return groups_.Obtain(response->group());
}

absl::Status Session::Barrier(absl::string_view group, absl::string_view tag,
                              absl::Duration timeout) {
  MemberContext& member = *core_->member;
  v1::BarrierRequest request;
  *request.mutable_fence() = member.NewRequest();
  request.set_group(std::string(group));
  request.set_tag(std::string(tag));
  request.set_timeout_ms(TimeoutMillis(timeout));
  const WaitCount::Scope waits(member.waits().get());
  return member.Outcome(
      member.stub().Barrier(request, member.WaitingCall(timeout)).status());
}

// ---- errors ----

bool IsJobFinished(const absl::Status& status) {
  return absl::IsCancelled(status) && DetailOf(status).has_job_finished();
}

bool MayComeFromPeers(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsAborted(error) ||
         absl::IsDeadlineExceeded(error) || absl::IsCancelled(error) ||
         // The coordinator has ended the generation, and this answer of another
         // call is here before the notice of that.
         DetailOf(error).stale_fence().field() == "generation";
}

absl::Status Explain(Session& session, const absl::Status& error,
                     absl::Duration timeout) {
  if (error.ok()) return error;
  // The callback may come after this function has returned.
  auto verdict = std::make_shared<Work>();
  session.OnAbort(
      [verdict](const absl::Status& reason) { verdict->Complete(reason); });
  absl::Status reason = verdict->Wait(timeout);
  if (!verdict->Done() || reason.ok()) return error;
  if (reason.message() == error.message()) return reason;
  // The coordinator may report the error that was seen here: then only its
  // place is new.
  std::string seen(error.message());
  const std::string tail = absl::StrCat(": ", reason.message());
  if (absl::EndsWith(seen, tail)) seen.resize(seen.size() - tail.size());
  return WithDetailOf(
      reason,
      absl::Status(reason.code(), absl::StrCat(reason.message(),
                                               " (seen here as: ", seen, ")")));
}

}  // namespace coxswain
