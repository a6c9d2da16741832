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

// What copies checkpoints between a coordinator and folders.
struct Transfer {
  CoordinatorStub* stub = nullptr;
  server::FileSystem* files = nullptr;
  RandomSource* random = nullptr;
  ProgressOutput progress;
};

// Downloads all shards, compares them with their checksums, and gives the
// folder its name once all of it is on the disk. Fails with ALREADY_EXISTS if
// `folder` exists, and with DATA_LOSS, naming the shard.
absl::Status ExportCheckpoint(const Transfer& transfer,
                              const v1::ShowResponse& checkpoint,
                              const std::string& folder);

// Reads and verifies the whole folder, then uploads it into that job and
// commits it. Fails with DATA_LOSS, naming the damaged shard, before it uploads
// any. After a later error it asks the coordinator once to discard the upload;
// if that request is lost, the coordinator keeps the open import until the next
// import into this job, or its restart.
absl::StatusOr<v1::CheckpointInfo> ImportCheckpoint(const Transfer& transfer,
                                                    const FoundJob& job,
                                                    const std::string& folder);

// Has the coordinator read the shards and compare their checksums. Fails with
// DATA_LOSS, naming the damaged shards.
absl::Status VerifyCheckpoint(const Transfer& transfer,
                              const v1::CheckpointInfo& checkpoint);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CHECKPOINT_TRANSFER_H_
