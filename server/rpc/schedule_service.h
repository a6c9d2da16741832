#ifndef COXSWAIN_SERVER_RPC_SCHEDULE_SERVICE_H_
#define COXSWAIN_SERVER_RPC_SCHEDULE_SERVICE_H_

#include "proto/schedule.grpc.pb.h"
#include "server/generation/fence.h"
#include "server/plan/plan_store.h"
#include "server/schedule/schedule_registry.h"

namespace coxswain::server {

// proto/schedule.proto on top of the plan store and the schedule registry.
// Thread-safe; the pointers must outlive the gRPC server.
class ScheduleService : public v1::Schedule::CallbackService {
 public:
  ScheduleService(PlanStore* plans, ScheduleRegistry* schedule,
                  const FenceValidator* validator);
  ~ScheduleService() override;

  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context,
                                    const v1::GetPlanRequest* request,
                                    v1::GetPlanResponse* response) override;
  grpc::ServerUnaryReactor* ProposePlan(
      grpc::CallbackServerContext* context,
      const v1::ProposePlanRequest* request,
      v1::ProposePlanResponse* response) override;
  grpc::ServerUnaryReactor* RequestCheckpoint(
      grpc::CallbackServerContext* context,
      const v1::RequestCheckpointRequest* request,
      v1::RequestCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* Why(grpc::CallbackServerContext* context,
                                const v1::WhyRequest* request,
                                v1::WhyResponse* response) override;

 private:
  PlanStore* const plans_;
  ScheduleRegistry* const schedule_;
  const FenceValidator* const validator_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_SCHEDULE_SERVICE_H_
