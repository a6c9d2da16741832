#ifndef COXSWAIN_CLI_CHECKPOINT_QUERY_H_
#define COXSWAIN_CLI_CHECKPOINT_QUERY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/job_query.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/checkpoint.pb.h"

namespace coxswain {

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

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CHECKPOINT_QUERY_H_
