#ifndef COXSWAIN_CLI_JOB_QUERY_H_
#define COXSWAIN_CLI_JOB_QUERY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// A job, and the coordinator that was asked for it.
struct FoundJob {
  std::string cluster_id;
  int64_t term = 0;
  v1::JobDescription job;
};

// The job of that name; without a name, the only one that there is (NOT_FOUND
// if there is none, INVALID_ARGUMENT lists several). A name that the
// coordinator does not remember counts as that of a job that has ended: its
// plan may be kept. Errors of the call are those of ExplainCall.
absl::StatusOr<FoundJob> FindJob(CoordinatorStub& stub, const std::string& name,
                                 absl::Duration timeout);

// An error of a call to the coordinator, with its address in front and what it
// failed to do.
absl::Status ExplainCall(const CoordinatorStub& stub, absl::string_view failed,
                         const absl::Status& error);

// What a request carries that changes something of the job: see the operator
// fence in proto/types.proto.
v1::Fence OperatorFence(const FoundJob& found, RandomSource* random);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_JOB_QUERY_H_
