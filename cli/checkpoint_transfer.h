#ifndef COXSWAIN_CLI_CHECKPOINT_TRANSFER_H_
#define COXSWAIN_CLI_CHECKPOINT_TRANSFER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/random.h"
#include "cli/job_query.h"
#include "cli/terminal.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/checkpoint.pb.h"
#include "server/storage/file_system.h"

namespace coxswain {

// How the bytes of checkpoints move between a coordinator and folders.
struct Transfer {
  CoordinatorStub* stub = nullptr;
  server::FileSystem* files = nullptr;
  RandomSource* random = nullptr;
  ProgressOutput progress;
};

// Downloads all shards, compares them with their checksums on the way, and
// gives the folder its name once all of it is on the disk. ALREADY_EXISTS if
// there is something of that name; DATA_LOSS names the shard.
absl::Status ExportCheckpoint(const Transfer& transfer,
                              const v1::ShowResponse& checkpoint,
                              const std::string& folder);

// Reads and verifies the whole folder, then uploads it into that job and
// commits it. DATA_LOSS names the shard that is damaged, before anything was
// uploaded. After an error the coordinator is asked once to discard what it has
// of it. Where that does not reach it, the open import keeps its place and its
// bytes until the next import into this job, or a restart of the coordinator.
absl::StatusOr<v1::CheckpointInfo> ImportCheckpoint(const Transfer& transfer,
                                                    const FoundJob& job,
                                                    const std::string& folder);

// The coordinator reads and compares. DATA_LOSS names the shards.
absl::Status VerifyCheckpoint(const Transfer& transfer,
                              const v1::CheckpointInfo& checkpoint);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CHECKPOINT_TRANSFER_H_
