#include "server/checkpoint/shard_download.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace coxswain::server {

absl::StatusOr<std::optional<ShardChunk>> ShardDownload::Next() {
  const int64_t left = shard_.bytes - offset_;
  if (left == 0) {
    if (crc32c_ == shard_.crc32c) return std::nullopt;
    return absl::DataLossError(absl::StrCat(
        "shard ", shard_.shard, " (file ", shard_.file,
        ") is damaged on the coordinator's disk: its checksum differs; use an "
        "older checkpoint"));
  }
  ShardChunk chunk;
  chunk.offset = offset_;
  const int64_t count = std::min<int64_t>(left, chunk_bytes_);
  COXSWAIN_ASSIGN_OR_RETURN(chunk.data, file_->Read(offset_, count));
  if (static_cast<int64_t>(chunk.data.size()) != count) {
    return absl::DataLossError(absl::StrCat(
        "shard ", shard_.shard, " (file ", shard_.file, ") ends at byte ",
        offset_ + static_cast<int64_t>(chunk.data.size()), " of ", shard_.bytes,
        "; use an older checkpoint"));
  }
  chunk.crc32c = Crc32c(chunk.data);
  crc32c_ = Crc32c(chunk.data, crc32c_);
  offset_ += count;
  return chunk;
}

}  // namespace coxswain::server
