#include "client/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/schedule/attached_schedule.h"
#include "client/schedule/schedule_wire.h"
#include "client/session/attachment.h"
#include "client/session/join.h"
#include "client/session/plan_overrides.h"
#include "client/session/session_groups.h"
#include "client/session/session_wire.h"

namespace coxswain {
namespace {

constexpr absl::Duration kLeaveTimeout = absl::Seconds(5);
constexpr absl::Duration kDestructorTimeout = absl::Seconds(2);
constexpr absl::Duration kAttachTimeout = absl::Seconds(30);
constexpr absl::string_view kWorldName = "world";

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

absl::Status FillDefaults(JobManifest* manifest, SessionOptions* options) {
  if (options->coordinator.empty() || options->job.empty()) {
    return absl::InvalidArgumentError(
        "SessionOptions need the coordinator's HOST:PORT and the job's name");
  }
  if (options->world_size > 0 && manifest->world_size > 0 &&
      options->world_size != manifest->world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the launcher starts ", options->world_size,
                     " workers (COXSWAIN_WORLD_SIZE), the program asks for ",
                     manifest->world_size));
  }
  options->world_size = std::max(options->world_size, manifest->world_size);
  if (options->world_size < 1) {
    return absl::InvalidArgumentError(
        "the world size is not known: set COXSWAIN_WORLD_SIZE, "
        "SessionOptions::world_size or JobManifest::world_size");
  }
  COXSWAIN_RETURN_IF_ERROR(
      ApplyPlanOverrides(options->plan_overrides, manifest));
  COXSWAIN_RETURN_IF_ERROR(manifest->terms.Validate());
  if (options->host.empty()) options->host = HostName();
  if (options->identity.node.empty()) options->identity.node = options->host;
  if (options->incarnation == Incarnation()) {
    options->incarnation = Incarnation(options->random->NextId());
  }
  return absl::OkStatus();
}

}  // namespace

// What a session consists of, and how its generation ends.
class Session::Core {
 public:
  Core(SessionOptions options, std::shared_ptr<CoordinatorStub> stub,
       const v1::JoinResponse& joined, const JobPlan& plan);
  ~Core() {
    if (attachment_ != nullptr) attachment_->Stop();
  }

  // Opens the Attach stream and waits until the coordinator has accepted it.
  absl::Status Attach(const v1::JoinResponse& joined);

  absl::StatusOr<std::shared_ptr<ProcessGroup>> Obtain(
      const v1::GroupInfo& info) {
    return groups_.Obtain(info);
  }
  absl::Status Leave(absl::string_view reason, bool failed,
                     absl::Duration timeout);
  void OnAbort(std::function<void(const absl::Status&)> callback);
  ScheduleClient& schedule() { return *schedule_; }
  absl::Status status() const {
    MutexLock lock(&mutex_);
    return status_;
  }

  const SessionOptions options;
  const int rank;
  const int64_t generation;
  const JobPlan plan;
  const std::vector<JobMember> members;
  const std::shared_ptr<Membership> membership;
  StoreClient store;
  CheckpointClient checkpoints;
  std::atomic<int64_t> step{0};

 private:
  using AbortCallback = std::function<void(const absl::Status&)>;

  v1::Heartbeat Progress() const;
  // The generation is over, and not by Leave. On the attachment's thread.
  void OnEnd(const absl::Status& why);
  // Ends waiting calls and, if asked to, the communicators.
  void Close(const absl::Status& why, bool abort_communicators);

  SessionGroups groups_;
  mutable Mutex mutex_;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool reported_ ABSL_GUARDED_BY(mutex_) = false;  // to on_abort_
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<AbortCallback> on_abort_ ABSL_GUARDED_BY(mutex_);

  // Its thread calls OnEnd and Progress.
  std::shared_ptr<Attachment> attachment_;
  // Its thread sends through the attachment, so it goes first.
  std::unique_ptr<AttachedSchedule> schedule_;
};

Session::Core::Core(SessionOptions options_in,
                    std::shared_ptr<CoordinatorStub> stub,
                    const v1::JoinResponse& joined, const JobPlan& plan_in)
    : options(std::move(options_in)),
      rank(joined.rank()),
      generation(joined.generation()),
      plan(plan_in),
      members(MembersOf(joined)),
      membership(std::make_shared<Membership>(
          std::move(stub), MakeFence(options, joined),
          RetryPolicy{options.clock, options.random, options.retry_base,
                      options.retry_cap})),
      store(membership),
      checkpoints(membership),
      groups_(rank,
              {options.backend, options.address, options.collective_timeout},
              membership) {
  AttachedSchedule::Options schedule_options;
  schedule_options.job = options.job;
  schedule_options.plan = plan;
  schedule_options.clock = options.clock;
  schedule_ = std::make_unique<AttachedSchedule>(
      schedule_options, [this](const v1::AttachRequest& request) {
        return attachment_ != nullptr && attachment_->Send(request);
      });
}

absl::Status Session::Core::Attach(const v1::JoinResponse& joined) {
  Attachment::Options attachment;
  attachment.grace = options.reattach_grace;
  if (joined.heartbeat_interval_ms() > 0) {
    attachment.heartbeat_interval =
        absl::Milliseconds(joined.heartbeat_interval_ms());
  }
  Attachment::Callbacks callbacks;
  callbacks.progress = [this]() { return Progress(); };
  callbacks.on_attached = [this]() { schedule_->OnAttached(); };
  callbacks.on_event = [this](const v1::AttachEvent& event) {
    schedule_->OnEvent(event);
  };
  callbacks.on_end = [this](const absl::Status& why) { OnEnd(why); };
  attachment_ = std::make_shared<Attachment>(membership, attachment,
                                             std::move(callbacks));
  // The membership lives on in watches that outlive the session.
  membership->stale().OnRaise([attachment = std::weak_ptr(attachment_),
                               membership = membership.get()]() {
    if (const auto living = attachment.lock()) {
      living->NoteStale(membership->stale().status());
    }
  });
  return attachment_->WaitUntilAttached(
      std::max(kAttachTimeout, options.reattach_grace));
}

v1::Heartbeat Session::Core::Progress() const {
  v1::Heartbeat heartbeat;
  heartbeat.set_step(step.load());
  schedule_->AddProgress(&heartbeat);
  groups_.AddProgress(&heartbeat);
  return heartbeat;
}

void Session::Core::OnEnd(const absl::Status& why) {
  LogError("generation_ended", {{"job", options.job},
                                {"rank", rank},
                                {"generation", generation},
                                {"reason", why.message()}});
  Close(why, /*abort_communicators=*/true);
  std::vector<AbortCallback> callbacks;
  {
    MutexLock lock(&mutex_);
    reported_ = true;
    callbacks.swap(on_abort_);
  }
  for (const AbortCallback& callback : callbacks) callback(why);
}

void Session::Core::Close(const absl::Status& why, bool abort_communicators) {
  {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ = why;
  }
  schedule_->End(why);
  groups_.End(why, abort_communicators);
  membership->ended().Raise(why);
}

void Session::Core::OnAbort(AbortCallback callback) {
  absl::Status ended;
  {
    MutexLock lock(&mutex_);
    if (left_) return;
    if (!reported_) {
      on_abort_.push_back(std::move(callback));
      return;
    }
    ended = status_;
  }
  callback(ended);
}

absl::Status Session::Core::Leave(absl::string_view reason, bool failed,
                                  absl::Duration timeout) {
  {
    MutexLock lock(&mutex_);
    if (left_) return absl::OkStatus();
    left_ = true;
    on_abort_.clear();
    // A generation that has ended has no members to leave.
    if (!status_.ok()) return absl::OkStatus();
  }
  attachment_->Leaving();
  const absl::Status end = absl::CancelledError(
      absl::StrCat("this worker has left the job: ", reason));
  // Peers of a failed worker must not wait for it. Otherwise the coordinator
  // hears of it first, so that it does not take the stream's end for a loss.
  if (failed) Close(end, /*abort_communicators=*/true);
  v1::LeaveRequest request;
  *request.mutable_fence() = membership->NewRequest();
  request.set_reason(std::string(reason));
  request.set_failed(failed);
  CallOptions call;
  call.timeout = timeout;
  absl::Status left = membership->stub().Leave(request, call).status();
  if (!failed) Close(end, /*abort_communicators=*/false);
  attachment_->Stop();
  return left;
}

absl::StatusOr<std::unique_ptr<Session>> Session::Join(
    SessionOptions options, const JobManifest& program) {
  JobManifest manifest = program;
  COXSWAIN_RETURN_IF_ERROR(FillDefaults(&manifest, &options));
  const std::shared_ptr<CoordinatorStub> stub = options.stub_factory(
      options.coordinator, RetryPolicy{options.clock, options.random,
                                       options.retry_base, options.retry_cap});
  v1::JoinRequest request = MakeJoinRequest(options, manifest);
  COXSWAIN_ASSIGN_OR_RETURN(const v1::JoinResponse joined,
                            JoinJob(options, *stub, &request));
  options.address = request.address();
  const auto plan = FromWire(joined.plan());
  auto core = std::make_unique<Core>(std::move(options), stub, joined,
                                     plan.ok() ? *plan : JobPlan());
  absl::Status attached = core->Attach(joined);
  if (attached.ok()) attached = plan.status();
  if (attached.ok()) attached = CheckAddresses(joined);
  if (!attached.ok()) {
    core->Leave(absl::StrCat("could not take part: ", attached.message()),
                /*failed=*/true, kDestructorTimeout)
        .IgnoreError();
    return attached;
  }
  LogInfo("joined", {{"job", core->options.job},
                     {"rank", core->rank},
                     {"world_size", core->members.size()},
                     {"generation", core->generation},
                     {"address", core->options.address}});
  return std::unique_ptr<Session>(new Session(std::move(core)));
}

Session::Session(std::unique_ptr<Core> core) : core_(std::move(core)) {}

Session::~Session() {
  core_
      ->Leave("the process ended without leaving", /*failed=*/true,
              kDestructorTimeout)
      .IgnoreError();
}

int Session::rank() const { return core_->rank; }
int Session::world_size() const {
  return static_cast<int>(core_->members.size());
}
int Session::local_rank() const { return core_->options.local_rank; }
int64_t Session::generation() const { return core_->generation; }
const std::string& Session::job() const { return core_->options.job; }
const JobPlan& Session::plan() const { return core_->plan; }
const std::vector<JobMember>& Session::members() const {
  return core_->members;
}
ScheduleClient& Session::schedule() { return core_->schedule(); }
StoreClient& Session::store() { return core_->store; }
CheckpointClient& Session::checkpoints() { return core_->checkpoints; }
absl::Status Session::status() const { return core_->status(); }

void Session::ReportProgress(int64_t optimizer_steps) {
  core_->step.store(optimizer_steps);
}

void Session::OnAbort(std::function<void(const absl::Status&)> callback) {
  core_->OnAbort(std::move(callback));
}

absl::Status Session::Leave(absl::string_view reason, bool failed) {
  return core_->Leave(reason, failed, kLeaveTimeout);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> Session::World() {
  std::vector<int> ranks(world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return CreateGroup(kWorldName, ranks);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> Session::CreateGroup(
    absl::string_view name, const std::vector<int>& ranks) {
  Membership& membership = *core_->membership;
  v1::CreateGroupRequest request;
  *request.mutable_fence() = membership.NewRequest();
  request.set_name(std::string(name));
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  const auto response =
      membership.stub().CreateGroup(request, membership.Call());
  if (!response.ok()) return membership.Outcome(response.status());
  return core_->Obtain(response->group());
}

absl::StatusOr<std::vector<std::shared_ptr<ProcessGroup>>> Session::CreateMesh(
    absl::string_view name, const std::vector<MeshAxis>& axes) {
  Membership& membership = *core_->membership;
  v1::CreateMeshRequest request;
  *request.mutable_fence() = membership.NewRequest();
  request.set_name(std::string(name));
  for (const MeshAxis& axis : axes) {
    v1::MeshAxis* wire = request.add_axes();
    wire->set_name(axis.name);
    wire->set_size(axis.size);
  }
  const auto response =
      membership.stub().CreateMesh(request, membership.Call());
  if (!response.ok()) return membership.Outcome(response.status());
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (const v1::GroupInfo& info : response->groups()) {
    COXSWAIN_ASSIGN_OR_RETURN(auto group, core_->Obtain(info));
    groups.push_back(std::move(group));
  }
  return groups;
}

absl::Status Session::Barrier(absl::string_view group, absl::string_view tag,
                              absl::Duration timeout) {
  Membership& membership = *core_->membership;
  v1::BarrierRequest request;
  *request.mutable_fence() = membership.NewRequest();
  request.set_group(std::string(group));
  request.set_tag(std::string(tag));
  request.set_timeout_ms(TimeoutMillis(timeout));
  return membership.Outcome(
      membership.stub()
          .Barrier(request, membership.WaitingCall(timeout))
          .status());
}

}  // namespace coxswain
