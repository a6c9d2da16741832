#include "server/rpc/schedule_service.h"

#include <string>

#include "absl/time/time.h"
#include "schedule/plan.h"
#include "schedule/schedule_wire.h"
#include "server/describe/messages.h"
#include "server/rpc/call.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

void Fill(const RankReport& rank, absl::Time at, v1::RankProgress* proto) {
  const Progress& progress = rank.member.progress;
  proto->set_rank(rank.member.member.rank);
  proto->set_member(rank.member.member.ToString());
  proto->set_state(std::string(ToString(rank.member.state)));
  proto->set_odd(rank.outlier);
  if (rank.ticket.has_value()) {
    proto->set_stream(rank.ticket->stream);
    proto->set_round(rank.ticket->round);
    proto->set_step(rank.ticket->step);
    proto->set_micro_batches_in_window(rank.micro_batches_in_window);
    proto->set_window(rank.window);
    proto->set_decided(rank.ticket->decided);
    proto->set_ticket_age_ms(absl::ToInt64Milliseconds(at - rank.ticket->at));
  } else if (rank.member.restored) {
    proto->set_step(progress.step);
  }
  proto->set_collective_sequence(progress.collective_sequence);
  proto->set_bucket(progress.bucket);
  proto->set_micro_batches(progress.micro_batches);
  proto->set_idle_ms(absl::ToInt64Milliseconds(rank.idle));
  proto->set_silent_ms(absl::ToInt64Milliseconds(rank.member.silence));
  proto->set_activity(progress.activity);
  proto->set_restored(rank.member.restored);
  proto->set_departure(rank.member.departure);
  proto->set_pipeline(rank.in);
  if (!rank.in.empty() && progress.pipeline.has_value()) {
    proto->set_pipeline_step(progress.pipeline->step);
    proto->set_pipeline_ms(absl::ToInt64Milliseconds(progress.pipeline->in_it));
  }
  for (const int other : rank.waits_for) {
    if (proto->waits_for_size() == kMaxWaitsFor) break;
    proto->add_waits_for(other);
  }
}

v1::WhyResponse ToProto(const WhyReport& why) {
  v1::WhyResponse proto;
  proto.set_state(why.state);
  proto.set_generation(why.generation.value());
  proto.set_last_event(why.last_event);
  proto.set_last_event_ms(AgeMs(why.last_event_at, why.last_event_age));
  proto.set_forming(why.forming);
  if (why.ended > absl::ZeroDuration()) {
    proto.set_ended_ms(AgeMs(why.schedule.at, why.ended));
  }
  const ScheduleReport& schedule = why.schedule;
  for (const std::string& finding : schedule.findings) {
    proto.add_findings(finding);
  }
  for (const RankReport& rank : schedule.ranks) {
    Fill(rank, schedule.at, proto.add_ranks());
  }
  for (const RoundReport& round : schedule.history) {
    *proto.add_history() = coxswain::server::ToProto(round, schedule.at);
  }
  return proto;
}

}  // namespace

ScheduleService::ScheduleService(PlanStore* plans, ScheduleRegistry* schedule,
                                 const FenceValidator* validator)
    : plans_(plans), schedule_(schedule), validator_(validator) {}

ScheduleService::~ScheduleService() = default;

grpc::ServerUnaryReactor* ScheduleService::GetPlan(
    grpc::CallbackServerContext* context, const v1::GetPlanRequest* request,
    v1::GetPlanResponse* response) {
  const absl::StatusOr<PlanStore::Plans> plans = plans_->Get(request->job());
  if (plans.ok()) {
    *response->mutable_current() = schedule::ToWire(plans->current);
    if (plans->next.has_value()) {
      *response->mutable_next() = schedule::ToWire(*plans->next);
    }
  }
  return ReplyNow(context, plans.status());
}

grpc::ServerUnaryReactor* ScheduleService::ProposePlan(
    grpc::CallbackServerContext* context, const v1::ProposePlanRequest* request,
    v1::ProposePlanResponse* response) {
  const absl::Status admitted =
      validator_->AdmitOperator(FromProto(request->fence()));
  if (!admitted.ok()) return ReplyNow(context, admitted);
  const absl::StatusOr<schedule::Plan> plan =
      schedule::PlanFromWire(request->plan());
  if (!plan.ok()) return ReplyNow(context, plan.status());
  const absl::StatusOr<schedule::Plan> next =
      plans_->Propose(request->job(), request->expected_version(), *plan);
  if (next.ok()) *response->mutable_next() = schedule::ToWire(*next);
  return ReplyNow(context, next.status());
}

grpc::ServerUnaryReactor* ScheduleService::RequestCheckpoint(
    grpc::CallbackServerContext* context,
    const v1::RequestCheckpointRequest* request,
    v1::RequestCheckpointResponse* response) {
  const absl::Status admitted =
      validator_->AdmitOperator(FromProto(request->fence()));
  if (!admitted.ok()) return ReplyNow(context, admitted);
  const absl::StatusOr<int64_t> newest =
      schedule_->RequestCheckpoint(request->job(), request->reason());
  if (newest.ok()) response->set_newest_step(*newest);
  return ReplyNow(context, newest.status());
}

grpc::ServerUnaryReactor* ScheduleService::Why(
    grpc::CallbackServerContext* context, const v1::WhyRequest* request,
    v1::WhyResponse* response) {
  const absl::StatusOr<WhyReport> why = schedule_->Why(request->job());
  if (why.ok()) *response = ToProto(*why);
  return ReplyNow(context, why.status());
}

}  // namespace coxswain::server
