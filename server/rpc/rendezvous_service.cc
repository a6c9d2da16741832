#include "server/rpc/rendezvous_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "base/tls_files.h"
#include "schedule/schedule_wire.h"
#include "schedule/ticket.h"
#include "server/describe/messages.h"
#include "server/rpc/call.h"
#include "server/rpc/proto_conversion.h"
#include "server/telemetry/stragglers.h"

namespace coxswain::server {
namespace {

using schedule::TakePosition;

// The answers to Join have all members of a generation as large as this.
constexpr size_t kMaxMembersInJoin = 64;
constexpr int kMaxMembersInPage = 1024;
// Each has a copy of all jobs, and waits for a commit.
constexpr int kMaxDescribes = 64;
// In a request to leave: one for each stream.
constexpr int kMaxPositions = 256;

// What a peer wrote may be of any length.
std::string ShownForLog(absl::string_view text) {
  return absl::CHexEscape(Shorten(text, 128));
}

JoinRequest FromProto(const v1::JoinRequest& proto) {
  JoinRequest request;
  request.job = proto.job();
  request.identity = coxswain::server::FromProto(proto.identity());
  request.incarnation = Incarnation(proto.incarnation());
  request.launcher_id = proto.launcher_id();
  request.host = proto.host();
  request.address = proto.address();
  request.topology.assign(proto.topology().begin(), proto.topology().end());
  request.manifest = coxswain::server::FromProto(proto.manifest());
  request.timeout = absl::Milliseconds(proto.timeout_ms());
  request.after_generation = Generation(proto.after_generation());
  request.attempt = proto.attempt();
  request.catch_up_address = proto.catch_up().address();
  request.catch_up_secret = proto.catch_up().secret();
  return request;
}

v1::LostMember ToProto(const LostMember& lost) {
  v1::LostMember proto;
  *proto.mutable_member() = coxswain::server::ToProto(lost.member);
  proto.set_reason(lost.reason);
  proto.set_left(lost.left);
  proto.set_error_norm(lost.error_norm);
  proto.set_error_step(lost.error_step);
  return proto;
}

void AddMembers(const JoinResult& result, v1::JoinResponse* proto) {
  const std::vector<Member>& members = *result.members;
  proto->set_world_size(static_cast<int>(members.size()));
  if (result.unreachable >= 0) {
    *proto->mutable_unreachable() =
        coxswain::server::ToProto(members[result.unreachable]);
  }
  if (members.size() > kMaxMembersInJoin) {
    *proto->add_members() = coxswain::server::ToProto(members[result.rank]);
    return;
  }
  for (const Member& member : members) {
    *proto->add_members() = coxswain::server::ToProto(member);
  }
}

v1::JoinResponse ToProto(const JoinResult& result) {
  v1::JoinResponse proto;
  proto.set_cluster_id(result.cluster_id);
  proto.set_term(result.term.value());
  proto.set_generation(result.generation.value());
  proto.set_rank(result.rank);
  AddMembers(result, &proto);
  *proto.mutable_plan() = schedule::ToWire(result.plan);
  proto.set_heartbeat_interval_ms(
      absl::ToInt64Milliseconds(result.heartbeat_interval));
  proto.set_lease_ms(absl::ToInt64Milliseconds(result.lease));
  proto.set_previous_generation(result.previous.value());
  proto.set_previous_world_size(result.previous_world_size);
  proto.set_lost_count(result.lost_count);
  if (result.lost != nullptr) {
    for (const LostMember& lost : *result.lost) {
      *proto.add_lost() = ToProto(lost);
    }
  }
  proto.set_reason(result.reason);
  return proto;
}

// Of gRPC's names of peers, such as "ipv6:%5B::1%5D:7070" or
// "ipv4:127.0.0.1:9".
bool IsLoopbackPeer(absl::string_view peer) {
  absl::string_view host = HostOfPeer(peer);
  if (!absl::ConsumePrefix(&host, "ipv4:")) {
    if (!absl::ConsumePrefix(&host, "ipv6:")) return false;
    return IsLoopbackHost(
        absl::StrReplaceAll(host, {{"%5B", "["}, {"%5D", "]"}}));
  }
  return IsLoopbackHost(host);
}

v1::StepTiming ToProto(const StepTiming& timing) {
  v1::StepTiming proto;
  proto.set_step(timing.step);
  proto.set_compute(timing.compute);
  proto.set_wait(timing.wait);
  proto.set_exchange(timing.exchange);
  proto.set_payload_bytes(timing.payload_bytes);
  proto.set_wire_bytes(timing.wire_bytes);
  return proto;
}

void AddHooks(const JobTelemetry& totals, v1::JobDescription* job) {
  for (const auto& [name, traffic] : totals.hooks) {
    v1::HookTraffic* const hook = job->add_hooks();
    hook->set_hook(name);
    hook->set_gradient_bytes(traffic.gradient_bytes);
    hook->set_payload_bytes(traffic.payload_bytes);
    hook->set_wire_bytes(traffic.wire_bytes);
  }
}

}  // namespace

RendezvousService::RendezvousService(const RpcOptions& options,
                                     Membership* membership,
                                     ScheduleRegistry* schedule,
                                     const AttachWitness& witness,
                                     const Clock* clock, bool encrypts)
    : options_(options),
      membership_(membership),
      schedule_(schedule),
      witness_(witness),
      encrypts_(encrypts),
      refusals_(std::make_shared<LogRate>("join_refused", clock, LogInfo)) {}

RendezvousService::~RendezvousService() = default;

grpc::ServerUnaryReactor* RendezvousService::Join(
    grpc::CallbackServerContext* context, const v1::JoinRequest* request,
    v1::JoinResponse* response) {
  const auto call = DeferredCall<v1::JoinResponse>::Start(response);
  JoinRequest join = FromProto(*request);
  // A client can repeat it as fast as it likes. Why a round fails is logged
  // with the round.
  join.on_refused = [refusals = refusals_, peer = context->peer(),
                     job = ShownForLog(join.job),
                     worker = ShownForLog(join.identity.ToString())](
                        const absl::Status& status) {
    refusals->Line(HostOfPeer(peer), {{"job", job},
                                      {"worker", worker},
                                      {"peer", peer},
                                      {"reason", status.message()}});
  };
  const bool may_have_key =
      request->encrypts() && (encrypts_ || IsLoopbackPeer(context->peer()));
  const uint64_t join_id = membership_->Join(
      std::move(join), call->Done([may_have_key](const JoinResult& result,
                                                 v1::JoinResponse* answer) {
        *answer = ToProto(result);
        if (may_have_key && result.data_key != nullptr) {
          answer->set_data_key(*result.data_key);
        }
      }));
  call->OnceCancelled(
      [membership = membership_, join_id] { membership->Withdraw(join_id); });
  return call->reactor();
}

grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachEvent>*
RendezvousService::Attach(grpc::CallbackServerContext* context) {
  return AttachCall::Start(options_, membership_, schedule_, witness_, context);
}

grpc::ServerUnaryReactor* RendezvousService::Leave(
    grpc::CallbackServerContext* /*context*/, const v1::LeaveRequest* request,
    v1::LeaveResponse* response) {
  LeaveNotice notice;
  notice.reason = request->reason();
  notice.failed = request->failed();
  notice.rejoin = request->rejoin();
  const auto call = DeferredCall<v1::LeaveResponse>::Start(response);
  const Fence fence = coxswain::server::FromProto(request->fence());
  // What it has received is written before its leaving.
  const absl::Status taken = TakeFinalState(fence, *request);
  if (taken.ok()) {
    membership_->Leave(fence, notice, call->Done());
  } else {
    call->Answer(taken);
  }
  return call->reactor();
}

absl::Status RendezvousService::TakeFinalState(
    const Fence& fence, const v1::LeaveRequest& request) {
  // Membership::Leave returns what is wrong with it.
  const absl::StatusOr<Caller> caller = membership_->Admit(fence);
  if (!caller.ok()) return absl::OkStatus();
  if (request.positions_size() > kMaxPositions) {
    return absl::InvalidArgumentError(
        absl::StrCat("a leave has at most ", kMaxPositions, " positions, not ",
                     request.positions_size()));
  }
  // Before any of it counts, all of it is checked, here and in OnLeaving().
  ScheduleRegistry::FinalState state;
  state.rank = caller->rank;
  state.fallback_epoch = request.fallback_epoch();
  for (v1::Position position : request.positions()) {
    COXSWAIN_ASSIGN_OR_RETURN(schedule::Decision last, TakePosition(&position));
    state.positions.push_back({position.last().stream(), std::move(last)});
  }
  COXSWAIN_RETURN_IF_ERROR(
      schedule_->OnLeaving(fence.job, fence.generation, state));
  const absl::StatusOr<uint64_t> attachment = membership_->AttachmentOf(fence);
  if (attachment.ok() && request.has_progress()) {
    NoteHeartbeat(request.progress(), *attachment, witness_, membership_);
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* RendezvousService::ReportExit(
    grpc::CallbackServerContext* /*context*/,
    const v1::ReportExitRequest* request, v1::ReportExitResponse* response) {
  ExitReport report;
  report.job = request->job();
  report.launcher_id = request->launcher_id();
  report.identity = coxswain::server::FromProto(request->identity());
  report.incarnation = Incarnation(request->incarnation());
  report.exit_code = request->exit_code();
  report.signal = request->signal();
  const auto call = DeferredCall<v1::ReportExitResponse>::Start(response);
  membership_->ReportExit(report, [call, report, membership = membership_](
                                      const absl::Status& status) {
    if (!status.ok()) return call->Answer(status);
    v1::ReportExitResponse answer;
    const auto end = membership->EndOf(report);
    if (end.has_value()) answer.set_ended(end->reason);
    if (end.has_value() && end->lost.has_value()) {
      *answer.mutable_lost() = coxswain::server::ToProto(*end->lost);
    }
    call->Answer(std::move(answer));
  });
  return call->reactor();
}

grpc::ServerUnaryReactor* RendezvousService::Members(
    grpc::CallbackServerContext* context, const v1::MembersRequest* request,
    v1::MembersResponse* response) {
  const auto members =
      membership_->PeersOf(coxswain::server::FromProto(request->fence()));
  if (!members.ok()) return ReplyNow(context, members.status());
  const int world_size = static_cast<int>((*members)->size());
  const int first = request->first_rank();
  if (first < 0 || first >= world_size) {
    return ReplyNow(context, absl::InvalidArgumentError(absl::StrCat(
                                 "first_rank ", first, " is not one of 0 to ",
                                 world_size - 1)));
  }
  const int count = std::min(
      {std::max(request->count(), 0), kMaxMembersInPage, world_size - first});
  for (int rank = first; rank < first + count; ++rank) {
    *response->add_members() = coxswain::server::ToProto((**members)[rank]);
  }
  return ReplyNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* RendezvousService::Describe(
    grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
    v1::DescribeResponse* response) {
  const auto call = DeferredCall<v1::DescribeResponse>::Start(response);
  // Of a caller that the interceptor has refused: a description would be wasted
  // work.
  if (context->IsCancelled()) {
    call->Answer(absl::CancelledError("the call is over"));
    return call->reactor();
  }
  // All copies of it go with the last reference to the answer.
  const std::shared_ptr<void> turn = describing_;
  if (describing_.use_count() > kMaxDescribes + 1) {
    call->Answer(absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxDescribes,
                     " descriptions are asked for at once: ask later")));
    return call->reactor();
  }
  const auto jobs = membership_->Describe(request->job());
  if (!jobs.ok()) {
    membership_->AfterWritten(
        [call, error = jobs.status()] { call->Answer(error); });
    return call->reactor();
  }
  v1::DescribeResponse answer;
  answer.set_cluster_id(membership_->cluster_id());
  answer.set_term(membership_->term().value());
  for (const JobDescription& job : *jobs) {
    v1::JobDescription* const described = answer.add_jobs();
    *described = coxswain::server::ToProto(job);
    const std::optional<RankWait> wait = schedule_->WaitOf(job);
    if (wait.has_value()) {
      *described->mutable_wait() = coxswain::server::ToProto(*wait);
    }
    if (const auto pipeline = schedule_->PipelineOf(job)) {
      *described->mutable_pipeline() = coxswain::server::ToProto(*pipeline);
    }
    if (witness_.telemetry == nullptr) continue;
    AddRing(witness_.telemetry->RingOf(job.job), described);
    if (request->steps() <= 0) continue;
    AddSteps(*witness_.telemetry, request->steps(), described);
  }
  membership_->AfterWritten([call, turn, answer = std::move(answer)]() mutable {
    call->Answer(std::move(answer));
  });
  return call->reactor();
}

void AddSteps(const Telemetry& telemetry, int steps, v1::JobDescription* job) {
  const std::optional<JobTelemetry> totals = telemetry.Totals(job->job());
  if (!totals.has_value()) return;
  AddHooks(*totals, job);
  const StepMatrix recent = telemetry.Matrix(job->job(), kStragglerSteps);
  for (const int rank : PersistentStragglers(SummariseSteps(recent))) {
    job->add_stragglers(rank);
  }
  std::vector<int> ranks;
  for (const v1::MemberDescription& member : job->members()) {
    ranks.push_back(member.member().rank());
  }
  if (ranks.empty() || recent.steps == 0) return;
  const int64_t timings_per_member = kMaxDescribedTimings / job->members_size();
  const int64_t last =
      std::clamp<int64_t>(std::min(steps, kMaxDescribedSteps), 1,
                          std::max<int64_t>(timings_per_member, 1));
  const int64_t newest =
      recent.first_step + static_cast<int64_t>(recent.steps) - 1;
  const auto timings = telemetry.Timings(
      job->job(), ranks, std::max<int64_t>(newest - last + 1, 0));
  for (size_t i = 0; i < timings.size(); ++i) {
    v1::MemberDescription* const member =
        job->mutable_members(static_cast<int>(i));
    for (const StepTiming& timing : timings[i]) {
      *member->add_steps() = ToProto(timing);
    }
  }
}

}  // namespace coxswain::server
