#ifndef COXSWAIN_CLI_CHECKPOINT_FORMAT_H_
#define COXSWAIN_CLI_CHECKPOINT_FORMAT_H_

#include <string>
#include <vector>

#include "proto/checkpoint.pb.h"

namespace coxswain {

// A job's checkpoints as a table for people, and as JSON:
//   {"job", "checkpoints": [CHECKPOINT]}
//   CHECKPOINT: {"id", "job", "step", "generation", "imported", "shards",
//                "bytes", "created_unix_ms", "metadata": {NAME: VALUE}}
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

#endif  // COXSWAIN_CLI_CHECKPOINT_FORMAT_H_
