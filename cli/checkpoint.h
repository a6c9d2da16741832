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

// What the commands need of the world.
struct CheckpointWorld {
  Transfer transfer;
  // Asks a person, and returns whether the answer was yes; an error if nobody
  // is there to be asked.
  std::function<absl::StatusOr<bool>(const std::string& question)> confirm;
};

// The usual one: the machine's disk, stderr and the terminal.
CheckpointWorld RealCheckpointWorld(CoordinatorStub* stub);

// `coxswain checkpoint ...`; returns the text for stdout. Errors as FindJob and
// PickCheckpoint, and as checkpoint_transfer.h.
absl::StatusOr<std::string> RunCheckpoint(const CheckpointOptions& options,
                                          const CheckpointWorld& world);

// A job's checkpoints as a table for display, and as JSON:
//   {"job", "checkpoints": [CHECKPOINT]}
//   CHECKPOINT: server::CheckpointJson, with "metadata": {NAME: VALUE}
std::string FormatCheckpoints(
    const std::string& job, const std::vector<v1::CheckpointInfo>& checkpoints);
std::string FormatCheckpointsJson(
    const std::string& job, const std::vector<v1::CheckpointInfo>& checkpoints);

// One of them with its shards; in JSON a CHECKPOINT with
//   "files": [{"shard", "file", "bytes", "crc32c"}]
// and the checksums as 8 hexadecimal digits.
std::string FormatCheckpoint(const v1::ShowResponse& checkpoint);
std::string FormatCheckpointJson(const v1::ShowResponse& checkpoint);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CHECKPOINT_H_
