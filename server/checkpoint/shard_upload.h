#ifndef COXSWAIN_SERVER_CHECKPOINT_SHARD_UPLOAD_H_
#define COXSWAIN_SERVER_CHECKPOINT_SHARD_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/checkpoint/manifest.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// Told by an upload how it ended. Implemented by CheckpointStore.
class ShardOwner {
 public:
  virtual ~ShardOwner() = default;
  // Counts the shard as complete; returns the file that it replaces, or "".
  // NOT_FOUND if the checkpoint is no longer open.
  virtual absl::StatusOr<std::string> CompleteShard(
      const std::string& id, const ShardRecord& shard) = 0;
  virtual void UploadRefused(const std::string& job, const std::string& id,
                             int shard, const absl::Status& status) = 0;
  virtual void UploadEnded() = 0;
};

// The upload of one shard. Made by CheckpointStore::StartUpload; the store
// must outlive it. One thread at a time. After an error, or if it is destroyed
// before Finish, the shard is discarded and a former complete upload of it
// still counts.
class ShardUpload {
 public:
  // `expected` is what the header announced, and the file to write in
  // `folder`.
  ShardUpload(FileSystem* file_system, ShardOwner* owner, std::string job,
              std::string id, std::string folder, ShardRecord expected,
              size_t max_chunk_bytes);
  ~ShardUpload();
  ShardUpload(const ShardUpload&) = delete;
  ShardUpload& operator=(const ShardUpload&) = delete;

  // Creates the file. Called first.
  absl::Status Open();

  // The next chunk, in pieces. DATA_LOSS if its checksum does not match or it
  // does not follow the chunk before; RESOURCE_EXHAUSTED if it is too large.
  absl::Status Append(int64_t offset, absl::Span<const absl::string_view> data,
                      uint32_t crc32c);
  absl::Status Append(int64_t offset, absl::string_view data, uint32_t crc32c) {
    return Append(offset, absl::MakeConstSpan(&data, 1), crc32c);
  }

  // Verifies the whole, syncs the file and counts the shard as complete.
  // DATA_LOSS if bytes are missing or the checksum of the whole differs;
  // NOT_FOUND if the checkpoint was committed or discarded meanwhile.
  absl::Status Finish();

 private:
  absl::Status CheckPlace(int64_t offset, size_t bytes) const;
  absl::Status CheckBytes(absl::Span<const absl::string_view> data,
                          uint32_t crc32c) const;
  std::string Name() const;
  absl::Status CheckWhole() const;
  // Discards the shard; the error is kept for later calls.
  absl::Status Fail(absl::Status status);
  void RemoveFile(const std::string& file) const;

  FileSystem* const file_system_;
  ShardOwner* const owner_;
  const std::string job_;
  const std::string id_;
  const std::string folder_;
  const ShardRecord expected_;
  const size_t max_chunk_bytes_;
  std::unique_ptr<WritableFile> file_;
  int64_t received_ = 0;
  uint32_t crc32c_ = 0;
  absl::Status status_;  // the first error
  bool complete_ = false;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_SHARD_UPLOAD_H_
