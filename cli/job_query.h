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
#include "client/rpc/coordinator_stub.h"
#include "proto/checkpoint.pb.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// A job, and the coordinator that has it.
struct FoundJob {
  std::string cluster_id;
  int64_t term = 0;
  v1::JobDescription job;
};

// Returns the job of that name; without a name, the coordinator's only job.
// Fails with NOT_FOUND if it has none, with INVALID_ARGUMENT if it has several,
// and as ExplainCall. A name that the coordinator does not know counts as a job
// that has ended, whose plan may be kept.
absl::StatusOr<FoundJob> FindJob(CoordinatorStub& stub, const std::string& name,
                                 absl::Duration timeout);

// Returns an error of a call to the coordinator, preceded by the coordinator's
// address and what it `failed` to do.
absl::Status ExplainCall(const CoordinatorStub& stub, absl::string_view failed,
                         const absl::Status& error);

// Returns an error of a call that names a job. Where the coordinator does not
// know the job, adds which it may be, or which jobs there are, if the caller
// may know them.
absl::Status NameKnownJobs(CoordinatorStub& stub, const std::string& job,
                           absl::Duration timeout, const absl::Status& error);

// Returns the fence of a request that changes the job: see the operator fence
// in proto/types.proto.
v1::Fence OperatorFence(const FoundJob& found, RandomSource* random);

// Returns the complete checkpoints of a job, the newest first.
absl::StatusOr<std::vector<v1::CheckpointInfo>> ListCheckpoints(
    CoordinatorStub& stub, const std::string& job, absl::Duration timeout);

// Returns the checkpoint that `which` names: an id, a step, or "newest". Fails
// with NOT_FOUND, naming the checkpoints of the job, and with INVALID_ARGUMENT
// if several are of that step.
absl::StatusOr<v1::CheckpointInfo> PickCheckpoint(
    const std::vector<v1::CheckpointInfo>& checkpoints, const std::string& job,
    const std::string& which);

// A job as FindJob returns it, and a checkpoint as PickCheckpoint does.
struct FoundCheckpoint {
  FoundJob found;
  v1::CheckpointInfo checkpoint;
};
absl::StatusOr<FoundCheckpoint> FindCheckpoint(CoordinatorStub& stub,
                                               const std::string& job,
                                               const std::string& which,
                                               absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_JOB_QUERY_H_
