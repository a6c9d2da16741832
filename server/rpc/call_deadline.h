#ifndef COXSWAIN_SERVER_RPC_CALL_DEADLINE_H_
#define COXSWAIN_SERVER_RPC_CALL_DEADLINE_H_

#include <string>

#include "absl/time/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"

namespace coxswain::server {

// Ends a call with DEADLINE_EXCEEDED after a time of the coordinator's own
// choice, whatever the client's deadline, unless it is destroyed before: for a
// client that says nothing, or does not read. The call sees OnCancel. On the
// system clock, as all of gRPC is.
class CallDeadline {
 public:
  // `what` is for the client: what was not done in time.
  CallDeadline(grpc::CallbackServerContext* context, absl::Duration timeout,
               std::string what);
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

 private:
  grpc::Alarm alarm_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CALL_DEADLINE_H_
