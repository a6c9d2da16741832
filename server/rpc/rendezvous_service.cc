#include "server/rpc/rendezvous_service.h"

#include <utility>

#include "absl/time/time.h"
#include "server/rpc/attach_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

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
  return request;
}

absl::StatusOr<v1::JoinResponse> ToProto(
    const absl::StatusOr<JoinResult>& result) {
  if (!result.ok()) return result.status();
  v1::JoinResponse proto;
  proto.set_cluster_id(result->cluster_id);
  proto.set_term(result->term.value());
  proto.set_generation(result->generation.value());
  proto.set_rank(result->rank);
  for (const Member& member : *result->members) {
    *proto.add_members() = coxswain::server::ToProto(member);
  }
  *proto.mutable_plan() = coxswain::server::ToProto(result->plan);
  proto.set_heartbeat_interval_ms(
      absl::ToInt64Milliseconds(result->heartbeat_interval));
  proto.set_lease_ms(absl::ToInt64Milliseconds(result->lease));
  return proto;
}

v1::JobDescription ToProto(const JobDescription& job) {
  v1::JobDescription proto;
  proto.set_job(job.job);
  proto.set_state(std::string(ToString(job.state)));
  proto.set_generation(job.generation.value());
  proto.set_world_size(job.world_size);
  if (job.plan.version != 0) {
    *proto.mutable_plan() = coxswain::server::ToProto(job.plan);
  }
  for (const MemberDescription& member : job.members) {
    v1::MemberDescription* out = proto.add_members();
    *out->mutable_member() = coxswain::server::ToProto(member.member);
    out->set_state(std::string(ToString(member.state)));
    out->set_step(member.progress.step);
    out->set_collective_sequence(member.progress.collective_sequence);
    out->set_payload_bytes(member.progress.payload_bytes);
    out->set_wire_bytes(member.progress.wire_bytes);
    out->set_silent_ms(absl::ToInt64Milliseconds(member.silence));
    out->set_micro_batches(member.progress.micro_batches);
    out->set_rounds(member.progress.rounds);
    out->set_bucket(member.progress.bucket);
    out->set_activity(member.progress.activity);
  }
  proto.set_last_event(job.last_event);
  return proto;
}

}  // namespace

grpc::ServerUnaryReactor* RendezvousService::Join(
    grpc::CallbackServerContext* /*context*/, const v1::JoinRequest* request,
    v1::JoinResponse* response) {
  const auto call = DeferredCall<v1::JoinResponse>::Start(response);
  const uint64_t ticket = membership_->Join(
      FromProto(*request), [call](const absl::StatusOr<JoinResult>& result) {
        call->Answer(ToProto(result));
      });
  call->OnceCancelled(
      [membership = membership_, ticket] { membership->Withdraw(ticket); });
  return call->reactor();
}

grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachEvent>*
RendezvousService::Attach(grpc::CallbackServerContext* context) {
  return AttachStream::Start(options_, membership_, schedule_, context);
}

grpc::ServerUnaryReactor* RendezvousService::Leave(
    grpc::CallbackServerContext* context, const v1::LeaveRequest* request,
    v1::LeaveResponse* /*response*/) {
  return ReplyNow(
      context, membership_->Leave(coxswain::server::FromProto(request->fence()),
                                  request->reason(), request->failed()));
}

grpc::ServerUnaryReactor* RendezvousService::ReportExit(
    grpc::CallbackServerContext* context, const v1::ReportExitRequest* request,
    v1::ReportExitResponse* /*response*/) {
  ExitReport report;
  report.job = request->job();
  report.launcher_id = request->launcher_id();
  report.identity = coxswain::server::FromProto(request->identity());
  report.incarnation = Incarnation(request->incarnation());
  report.exit_code = request->exit_code();
  report.signal = request->signal();
  membership_->ReportExit(report);
  return ReplyNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* RendezvousService::Describe(
    grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
    v1::DescribeResponse* response) {
  const auto jobs = membership_->Describe(request->job());
  if (jobs.ok()) {
    response->set_cluster_id(membership_->cluster_id());
    response->set_term(membership_->term().value());
    for (const JobDescription& job : *jobs) {
      *response->add_jobs() = ToProto(job);
    }
  }
  return ReplyNow(context, jobs.status());
}

}  // namespace coxswain::server
