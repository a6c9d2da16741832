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
  const size_t count = std::min<int64_t>(left, chunk_bytes_);
  const std::shared_ptr<char[]> memory(new char[count]);
  COXSWAIN_ASSIGN_OR_RETURN(const size_t got,
                            file_->ReadInto(offset_, count, memory.get()));
  if (got != count) {
    return absl::DataLossError(
        absl::StrCat("shard ", shard_.shard, " (file ", shard_.file,
                     ") ends at byte ", offset_ + static_cast<int64_t>(got),
                     " of ", shard_.bytes, "; use an older checkpoint"));
  }
  chunk.data = absl::string_view(memory.get(), count);
  chunk.owner = memory;
  chunk.crc32c = Crc32c(chunk.data);
  crc32c_ = Crc32cConcat(crc32c_, chunk.crc32c, count);
  offset_ += static_cast<int64_t>(count);
  return chunk;
}

}  // namespace coxswain::server
