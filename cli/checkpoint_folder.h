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

// A checkpoint in a folder of its own, for export and import. The format is in
// docs/storage-format.md.

// Writes such a folder under a temporary name, and renames it once all of it is
// on the disk. Leaves nothing if it is destroyed before Finish. One thread.
class FolderWriter {
 public:
  // Fails with ALREADY_EXISTS if `folder` exists. Its parent must exist.
  static absl::StatusOr<std::unique_ptr<FolderWriter>> Create(
      server::FileSystem* files, const std::string& folder,
      const server::CheckpointRecord& record, RandomSource* random);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  // Returns the shard's file, for the caller to write and close with
  // SyncAndClose.
  absl::StatusOr<std::unique_ptr<server::WritableFile>> CreateShard(
      const server::ShardRecord& shard);

  // Called after all shards.
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

// Fails with DATA_LOSS unless each shard's file is directly in the folder,
// under a name of its own that is not the manifest's.
absl::Status CheckShardFiles(const server::CheckpointRecord& record);

absl::Status SyncAndClose(server::WritableFile* file);

// Returns the folder's manifest, after all checks that need not read the
// shards. Errors, such as DATA_LOSS, name the folder.
absl::StatusOr<server::CheckpointRecord> ReadFolder(
    const server::FileSystem& files, const std::string& folder);

// Passes a shard of that folder to `take`, in pieces of at most `piece` bytes
// that live as long as `owner`. Fails with the error of `take`, or with
// DATA_LOSS, naming the shard, if its size or checksum is not the manifest's.
using TakePiece = std::function<absl::Status(
    int64_t offset, absl::string_view data, uint32_t crc32c,
    const std::shared_ptr<const void>& owner)>;
absl::Status ReadShard(const server::FileSystem& files,
                       const std::string& folder,
                       const server::ShardRecord& shard, int64_t piece,
                       const TakePiece& take);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CHECKPOINT_FOLDER_H_
