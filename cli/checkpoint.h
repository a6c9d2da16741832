#ifndef COXSWAIN_CLI_CHECKPOINT_H_
#define COXSWAIN_CLI_CHECKPOINT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/checkpoint_transfer.h"
#include "cli/options.h"
#include "proto/checkpoint.pb.h"

namespace coxswain {

// What the commands need besides their options.
struct CheckpointWorld {
  Transfer transfer;
  // Asks the user, and returns whether the answer was yes. Fails with
  // FAILED_PRECONDITION if there is no terminal.
  std::function<absl::StatusOr<bool>(const std::string& question)> confirm;
};

// Returns the machine's disk, stderr and the terminal.
CheckpointWorld RealCheckpointWorld(CoordinatorStub* stub);

// Runs `coxswain checkpoint ...`; returns the text for stdout. Fails as
// FindJob, PickCheckpoint and checkpoint_transfer.h.
absl::StatusOr<std::string> RunCheckpoint(const CheckpointOptions& options,
                                          const CheckpointWorld& world);

// Returns a job's checkpoints as a table for display, or as JSON:
//   {"job", "checkpoints": [CHECKPOINT]}
//   CHECKPOINT: server::CheckpointJson, with "metadata": {NAME: VALUE}
std::string FormatCheckpoints(
    const std::string& job, const std::vector<v1::CheckpointInfo>& checkpoints);
std::string FormatCheckpointsJson(
    const std::string& job, const std::vector<v1::CheckpointInfo>& checkpoints);

// Returns one of them with its shards; in JSON a CHECKPOINT with
//   "files": [{"shard", "file", "bytes", "crc32c"}]
// and the checksums as 8 hexadecimal digits.
std::string FormatCheckpoint(const v1::ShowResponse& checkpoint);
std::string FormatCheckpointJson(const v1::ShowResponse& checkpoint);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CHECKPOINT_H_
