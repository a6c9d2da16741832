#ifndef COXSWAIN_SERVER_CHECKPOINT_SHARD_DOWNLOAD_H_
#define COXSWAIN_SERVER_CHECKPOINT_SHARD_DOWNLOAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/checkpoint/manifest.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// A piece of a shard.
struct ShardChunk {
  int64_t offset = 0;
  absl::string_view data;  // as long as `owner` is held
  uint32_t crc32c = 0;
  std::shared_ptr<const void> owner;
};

// Reads one shard of a complete checkpoint from its start. One thread at a
// time. It stays readable while the checkpoint is deleted. `ended` is called
// when it is destroyed.
class ShardDownload {
 public:
  ShardDownload(std::unique_ptr<ReadableFile> file, ShardRecord shard,
                size_t chunk_bytes, std::function<void()> ended)
      : file_(std::move(file)),
        shard_(std::move(shard)),
        chunk_bytes_(chunk_bytes),
        ended_(std::move(ended)) {}
  ~ShardDownload() { ended_(); }
  ShardDownload(const ShardDownload&) = delete;
  ShardDownload& operator=(const ShardDownload&) = delete;

  int64_t bytes() const { return shard_.bytes; }
  uint32_t crc32c() const { return shard_.crc32c; }

  // The next chunk, or nothing after the last one. DATA_LOSS, in place of the
  // end, if what was read is not what was committed: a receiver must not use
  // the chunks before it has seen the end.
  absl::StatusOr<std::optional<ShardChunk>> Next();

 private:
  const std::unique_ptr<ReadableFile> file_;
  const ShardRecord shard_;
  const size_t chunk_bytes_;
  const std::function<void()> ended_;
  int64_t offset_ = 0;
  uint32_t crc32c_ = 0;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_SHARD_DOWNLOAD_H_
