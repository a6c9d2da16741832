#include "client/checkpoint/range_download.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/rpc/member_context.h"

namespace coxswain {
namespace {

// The coordinator's max_ranges.
constexpr size_t kMostRanges = 4096;

}  // namespace

absl::Status DamagedShard(absl::string_view id, int shard,
                          absl::string_view what) {
  return absl::DataLossError(absl::StrFormat(
      "shard %d of checkpoint '%s' arrived damaged: %s", shard, id, what));
}

absl::Status RangeDownload::Once(MemberContext& member,
                                 absl::Duration timeout) {
  const size_t end = std::min(ranges_.size(), at_ + kMostRanges);
  v1::DownloadRequest request;
  request.set_job(member.job());
  request.set_checkpoint_id(std::string(id_));
  request.set_shard(shard_);
  for (size_t i = at_; i < end; ++i) {
    const int64_t taken = i == at_ ? taken_ : 0;
    v1::ByteRange* const range = request.add_ranges();
    range->set_offset(ranges_[i].offset + taken);
    range->set_bytes(ranges_[i].bytes - taken);
  }
  const auto stream = member.stub().Download(request, member.Call(timeout));
  v1::DownloadChunk message;
  std::vector<absl::string_view> data;
  bool has_header = false;
  while (stream->ReadPieces(&message, &data)) {
    if (message.has_header()) {
      has_header = true;
      if (message.header().ranges()) continue;
      return absl::UnimplementedError(absl::StrCat(
          "the coordinator at ", member.stub().address(),
          " is of a version that sends only whole shards of a checkpoint, "
          "and of checkpoint ",
          id_, " this rank needs parts; update the coordinator"));
    }
    if (!has_header)
      return DamagedShard(id_, shard_, "a chunk before the header");
    COXSWAIN_RETURN_IF_ERROR(Take(message.chunk(), data));
  }
  COXSWAIN_RETURN_IF_ERROR(stream->Finish());
  if (at_ == end) return absl::OkStatus();
  return DamagedShard(id_, shard_, "ranges are missing");
}

absl::Status RangeDownload::Take(const v1::Chunk& chunk,
                                 const std::vector<absl::string_view>& data) {
  int64_t count = 0;
  uint32_t crc = 0;
  for (const absl::string_view piece : data) {
    count += static_cast<int64_t>(piece.size());
    crc = Crc32c(piece, crc);
  }
  if (done() || chunk.offset() != ranges_[at_].offset + taken_ ||
      count > ranges_[at_].bytes - taken_) {
    return DamagedShard(
        id_, shard_,
        absl::StrFormat("a chunk of %d bytes at %d is of none of "
                        "the ranges",
                        count, chunk.offset()));
  }
  if (crc != chunk.crc32c()) {
    return DamagedShard(
        id_, shard_,
        absl::StrFormat("wrong CRC-32C of the chunk at %d", chunk.offset()));
  }
  taken_ += count;
  if (taken_ == ranges_[at_].bytes) {
    ++at_;
    taken_ = 0;
  }
  for (const absl::string_view piece : data) {
    COXSWAIN_RETURN_IF_ERROR(take_(piece));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
