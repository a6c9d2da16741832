#ifndef COXSWAIN_SERVER_RPC_RENDEZVOUS_SERVICE_H_
#define COXSWAIN_SERVER_RPC_RENDEZVOUS_SERVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/logging.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/rendezvous.pb.h"
#include "server/membership/membership.h"
#include "server/options/options.h"
#include "server/rpc/attach_call.h"
#include "server/schedule/schedule_registry.h"
#include "server/telemetry/telemetry.h"

namespace coxswain::server {

// An answer holds 50 to 60 bytes for each.
inline constexpr int64_t kMaxDescribedTimings = 16'384;
inline constexpr int kMaxDescribedSteps = 64;

// Adds to a job's description how its members spent their last `steps` steps,
// which of them are stragglers, and what they moved, by hook. Of jobs with many
// members fewer steps, one at least. Plain function.
void AddSteps(const Telemetry& telemetry, int steps, v1::JobDescription* job);

// proto/rendezvous.proto on top of the membership table and the schedule
// registry, which must outlive it. Call Membership::Shutdown() before the gRPC
// server's, so that no call waits on.
class RendezvousService : public v1::Rendezvous::CallbackService {
 public:
  // `clock`, by which refusals are logged at a rate, outlives it too.
  // `encrypts`: all of its connections are.
  RendezvousService(const RpcOptions& options, Membership* membership,
                    ScheduleRegistry* schedule,
                    const AttachWitness& witness = {},
                    const Clock* clock = Clock::Real(), bool encrypts = false);
  ~RendezvousService() override;

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachEvent>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override;
  grpc::ServerUnaryReactor* ReportExit(
      grpc::CallbackServerContext* context,
      const v1::ReportExitRequest* request,
      v1::ReportExitResponse* response) override;
  grpc::ServerUnaryReactor* Members(grpc::CallbackServerContext* context,
                                    const v1::MembersRequest* request,
                                    v1::MembersResponse* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;

 private:
  absl::Status TakeFinalState(const Fence& fence,
                              const v1::LeaveRequest& request);

  const RpcOptions options_;
  Membership* const membership_;
  ScheduleRegistry* const schedule_;
  const AttachWitness witness_;
  const bool encrypts_;
  // Shared with requests to join, which may be refused after their calls.
  const std::shared_ptr<LogRate> refusals_;
  // As many references as descriptions are under way, and one.
  const std::shared_ptr<void> describing_ = std::make_shared<int>();
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_RENDEZVOUS_SERVICE_H_
