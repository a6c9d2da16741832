#include "server/rpc/schedule_service.h"

#include "server/rpc/call.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {

grpc::ServerUnaryReactor* ScheduleService::GetPlan(
    grpc::CallbackServerContext* context, const v1::GetPlanRequest* request,
    v1::GetPlanResponse* response) {
  const absl::StatusOr<PlanRoom::Plans> plans = plans_->Get(request->job());
  if (plans.ok()) {
    *response->mutable_current() = ToProto(plans->current);
    if (plans->next.has_value()) {
      *response->mutable_next() = ToProto(*plans->next);
    }
  }
  return ReplyNow(context, plans.status());
}

grpc::ServerUnaryReactor* ScheduleService::ProposePlan(
    grpc::CallbackServerContext* context, const v1::ProposePlanRequest* request,
    v1::ProposePlanResponse* response) {
  const absl::Status admitted =
      gate_->AdmitOperator(FromProto(request->fence()));
  if (!admitted.ok()) return ReplyNow(context, admitted);
  const absl::StatusOr<Plan> next = plans_->Propose(
      request->job(), request->expected_version(), FromProto(request->plan()));
  if (next.ok()) *response->mutable_next() = ToProto(*next);
  return ReplyNow(context, next.status());
}

}  // namespace coxswain::server
