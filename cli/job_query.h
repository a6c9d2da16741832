#ifndef COXSWAIN_CLI_JOB_QUERY_H_
#define COXSWAIN_CLI_JOB_QUERY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/tls_files.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/checkpoint.pb.h"
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

// The complete checkpoints of a job, the last one made first.
absl::StatusOr<std::vector<v1::CheckpointInfo>> ListCheckpoints(
    CoordinatorStub& stub, const std::string& job, absl::Duration timeout);

// The one that `which` names: an id, a step, or "newest". NOT_FOUND says which
// there are; INVALID_ARGUMENT if several are of that step.
absl::StatusOr<v1::CheckpointInfo> PickCheckpoint(
    const std::vector<v1::CheckpointInfo>& checkpoints, const std::string& job,
    const std::string& which);

// Both, of a job as FindJob finds it.
struct FoundCheckpoint {
  FoundJob found;
  v1::CheckpointInfo checkpoint;
};
absl::StatusOr<FoundCheckpoint> FindCheckpoint(CoordinatorStub& stub,
                                               const std::string& job,
                                               const std::string& which,
                                               absl::Duration timeout);

// An error of a call to a coordinator. Where the connection was cut off, and
// certificates are not given, it says besides that these may be what is
// missing. For cli/main.cc.
absl::Status HintAtTls(const absl::Status& error,
                       const ClientSecurity& security);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_JOB_QUERY_H_
