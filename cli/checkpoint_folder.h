#ifndef COXSWAIN_CLI_CHECKPOINT_FOLDER_H_
#define COXSWAIN_CLI_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "server/checkpoint/manifest.h"
#include "server/storage/file_system.h"

namespace coxswain {

// A checkpoint in a folder of its own, as docs/storage-format.md has it: what
// is exported and imported.

// Writes one under a temporary name, which becomes the real one once all of it
// is on the disk. One thread. Destroyed before Finish, it leaves nothing.
class FolderWriter {
 public:
  // `folder` must not exist (ALREADY_EXISTS), and its parent must.
  static absl::StatusOr<std::unique_ptr<FolderWriter>> Create(
      server::FileSystem* files, const std::string& folder,
      const server::CheckpointRecord& record, RandomSource* random);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  // The shard's file, to be written and closed with SyncAndClose.
  absl::StatusOr<std::unique_ptr<server::WritableFile>> CreateShard(
      const server::ShardRecord& shard);

  // After all shards.
  absl::Status Finish();

 private:
  FolderWriter(server::FileSystem* files, std::string folder,
               server::CheckpointRecord record, RandomSource* random);

  server::FileSystem* const files_;
  const std::string folder_;
  const std::string temporary_;
  const server::CheckpointRecord record_;
  bool finished_ = false;
};

// Whether the files of the shards are in the folder, each under a name of its
// own that is not the manifest's. DATA_LOSS.
absl::Status CheckShardFiles(const server::CheckpointRecord& record);

absl::Status SyncAndClose(server::WritableFile* file);

// What the folder's manifest says, with everything that can be checked without
// reading the shards: DATA_LOSS and the like name the folder.
absl::StatusOr<server::CheckpointRecord> ReadFolder(
    const server::FileSystem& files, const std::string& folder);

// Hands out a shard of that folder in pieces of at most `piece` bytes, which
// live as long as `owner`. DATA_LOSS names the shard if the bytes are not those
// of the manifest, in place of the last OK; or the error of `take`.
using TakePiece = std::function<absl::Status(
    int64_t offset, absl::string_view data, uint32_t crc32c,
    const std::shared_ptr<const void>& owner)>;
absl::Status ReadShard(const server::FileSystem& files,
                       const std::string& folder,
                       const server::ShardRecord& shard, int64_t piece,
                       const TakePiece& take);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CHECKPOINT_FOLDER_H_
