#ifndef COXSWAIN_SERVER_CHECKPOINT_SHARD_TRANSFER_H_
#define COXSWAIN_SERVER_CHECKPOINT_SHARD_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/checkpoint/manifest.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// Is notified how an upload ended. Implemented by CheckpointStore.
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
  // `expected` has what the header announced, and the name of the file to write
  // in `folder`.
  ShardUpload(FileSystem* file_system, ShardOwner* owner, std::string job,
              std::string id, std::string folder, ShardRecord expected,
              size_t max_chunk_bytes);
  ~ShardUpload();
  ShardUpload(const ShardUpload&) = delete;
  ShardUpload& operator=(const ShardUpload&) = delete;

  // Creates the file. Called first.
  absl::Status Open();

  // Takes the next chunk, in pieces. Fails with DATA_LOSS if its checksum does
  // not match or it does not follow the chunk before, and with
  // RESOURCE_EXHAUSTED if it is too large.
  absl::Status Append(int64_t offset, absl::Span<const absl::string_view> data,
                      uint32_t crc32c);
  absl::Status Append(int64_t offset, absl::string_view data, uint32_t crc32c) {
    return Append(offset, absl::MakeConstSpan(&data, 1), crc32c);
  }

  // Verifies the whole, syncs the file and counts the shard as complete. Fails
  // with DATA_LOSS if bytes are missing or the checksum of the whole differs,
  // and with NOT_FOUND if the checkpoint was committed or discarded meanwhile.
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

// A piece of a shard.
struct ShardChunk {
  int64_t offset = 0;
  absl::string_view data;  // as long as `owner` is held
  uint32_t crc32c = 0;
  std::shared_ptr<const void> owner;
};

// Bytes of a shard.
struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Fails with INVALID_ARGUMENT unless the ranges ascend, do not overlap, and are
// in a shard of that many bytes; none may be empty.
absl::Status CheckRanges(const std::vector<ByteRange>& ranges, int64_t bytes);

// Reads one shard of a complete checkpoint from its start, or ranges of it,
// which CheckRanges has passed. One thread at a time. It stays readable while
// the checkpoint is deleted. `ended` is called when it is destroyed.
class ShardDownload {
 public:
  // Without ranges: all of it.
  ShardDownload(std::unique_ptr<ReadableFile> file, ShardRecord shard,
                std::vector<ByteRange> ranges, size_t chunk_bytes,
                std::function<void()> ended)
      : file_(std::move(file)),
        shard_(std::move(shard)),
        whole_(ranges.empty()),
        ranges_(std::move(ranges)),
        chunk_bytes_(chunk_bytes),
        ended_(std::move(ended)) {
    if (whole_) ranges_.push_back({0, shard_.bytes});
  }
  ~ShardDownload() { ended_(); }
  ShardDownload(const ShardDownload&) = delete;
  ShardDownload& operator=(const ShardDownload&) = delete;

  int64_t bytes() const { return shard_.bytes; }
  uint32_t crc32c() const { return shard_.crc32c; }

  // Returns the next chunk, or nothing after the last one. Fails with
  // DATA_LOSS, in place of the end, if what was read is not what was committed:
  // a receiver must not use the chunks before it has received the end. Ranges
  // are not compared: what is in the shard has to say whether they are intact.
  absl::StatusOr<std::optional<ShardChunk>> Next();

 private:
  const std::unique_ptr<ReadableFile> file_;
  const ShardRecord shard_;
  const bool whole_;
  std::vector<ByteRange> ranges_;
  const size_t chunk_bytes_;
  const std::function<void()> ended_;
  size_t range_ = 0;   // that it is at
  int64_t taken_ = 0;  // of that one
  uint32_t crc32c_ = 0;
};

// The checkpoints that are being read, which retention does not delete. A
// reader of shard after shard has none open in between, so a checkpoint counts
// as being read for a while after its last reader. A part of CheckpointStore:
// thread-compatible.
class Readers {
 public:
  explicit Readers(absl::Duration grace) : grace_(grace) {}

  void Begin(const std::string& id) { ++reads_[id].open; }

  // Forgets those whose time is over, so that no more are kept than are read.
  void End(const std::string& id, absl::Time now) {
    Read& read = reads_[id];
    --read.open;
    read.until = now + grace_;
    for (auto it = reads_.begin(); it != reads_.end();) {
      it = it->second.IsOn(now) ? std::next(it) : reads_.erase(it);
    }
  }

  bool IsRead(absl::string_view id, absl::Time now) const {
    const auto found = reads_.find(id);
    return found != reads_.end() && found->second.IsOn(now);
  }

 private:
  struct Read {
    int open = 0;
    absl::Time until = absl::InfinitePast();

    bool IsOn(absl::Time now) const { return open > 0 || now < until; }
  };

  const absl::Duration grace_;
  std::map<std::string, Read, std::less<>> reads_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_SHARD_TRANSFER_H_
