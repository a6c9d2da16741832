#ifndef COXSWAIN_CLIENT_SESSION_JOIN_H_
#define COXSWAIN_CLIENT_SESSION_JOIN_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/rpc/coordinator_stub.h"
#include "client/session/session_options.h"

namespace coxswain {

// The first part of Session::Join: asks until the coordinator answers, says
// meanwhile what it waits for, and words what went wrong. Fills in the
// request's address, if empty, and its timeout.
absl::StatusOr<v1::JoinResponse> JoinJob(const SessionOptions& options,
                                         CoordinatorStub& stub,
                                         v1::JoinRequest* request);

// FAILED_PRECONDITION if the coordinator has found that the members are on
// several hosts and one of them has a loopback address; the message says whose,
// and what to set.
absl::Status CheckAddresses(const v1::JoinResponse& joined);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_JOIN_H_
