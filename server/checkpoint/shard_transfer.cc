#include "server/checkpoint/shard_transfer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain::server {

ShardUpload::ShardUpload(FileSystem* file_system, ShardOwner* owner,
                         std::string job, std::string id, std::string folder,
                         ShardRecord expected, size_t max_chunk_bytes)
    : file_system_(file_system),
      owner_(owner),
      job_(std::move(job)),
      id_(std::move(id)),
      folder_(std::move(folder)),
      expected_(std::move(expected)),
      max_chunk_bytes_(max_chunk_bytes) {}

ShardUpload::~ShardUpload() {
  file_.reset();
  if (!complete_ && status_.ok()) RemoveFile(expected_.file);
  owner_->UploadEnded();
}

absl::Status ShardUpload::Open() {
  absl::StatusOr<std::unique_ptr<WritableFile>> file =
      file_system_->Create(absl::StrCat(folder_, "/", expected_.file));
  if (!file.ok()) return Fail(file.status());
  file_ = *std::move(file);
  return absl::OkStatus();
}

void ShardUpload::RemoveFile(const std::string& file) const {
  const absl::Status status =
      file_system_->RemoveTree(absl::StrCat(folder_, "/", file));
  if (!status.ok()) {
    LogWarning("shard_file_left_behind",
               {{"checkpoint", id_}, {"error", status.ToString()}});
  }
}

absl::Status ShardUpload::Fail(absl::Status status) {
  status_ = std::move(status);
  file_.reset();
  RemoveFile(expected_.file);
  owner_->UploadRefused(job_, id_, expected_.shard, status_);
  return status_;
}

std::string ShardUpload::Name() const {
  return absl::StrCat("shard ", expected_.shard, " of checkpoint ", id_);
}

absl::Status ShardUpload::CheckPlace(int64_t offset, size_t bytes) const {
  if (bytes > max_chunk_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Name(), ": a chunk of ", bytes,
        " bytes passes the limit max_chunk_bytes of ", max_chunk_bytes_));
  }
  if (offset != received_) {
    return absl::DataLossError(absl::StrCat(
        Name(), ": a chunk at offset ", offset, " came where offset ",
        received_, " was next; upload the shard again"));
  }
  if (static_cast<int64_t>(bytes) > expected_.bytes - received_) {
    return absl::DataLossError(
        absl::StrCat(Name(), ": more bytes came than the announced ",
                     expected_.bytes, "; upload the shard again"));
  }
  return absl::OkStatus();
}

absl::Status ShardUpload::CheckBytes(absl::Span<const absl::string_view> data,
                                     uint32_t crc32c) const {
  uint32_t actual = 0;
  for (const absl::string_view piece : data) actual = Crc32c(piece, actual);
  if (actual == crc32c) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s: the chunk at offset %d has CRC-32C %08x where %08x was "
      "announced; upload the shard again",
      Name(), received_, actual, crc32c));
}

absl::Status ShardUpload::Append(int64_t offset,
                                 absl::Span<const absl::string_view> data,
                                 uint32_t crc32c) {
  if (!status_.ok()) return status_;
  size_t bytes = 0;
  for (const absl::string_view piece : data) bytes += piece.size();
  absl::Status status = CheckPlace(offset, bytes);
  if (status.ok()) status = CheckBytes(data, crc32c);
  if (status.ok()) status = file_->AppendAll(data);
  if (!status.ok()) return Fail(std::move(status));
  received_ += static_cast<int64_t>(bytes);
  crc32c_ = Crc32cConcat(crc32c_, crc32c, bytes);
  return absl::OkStatus();
}

absl::Status ShardUpload::CheckWhole() const {
  if (received_ != expected_.bytes) {
    return absl::DataLossError(
        absl::StrCat(Name(), ": only ", received_, " of the announced ",
                     expected_.bytes, " bytes came; upload the shard again"));
  }
  if (crc32c_ != expected_.crc32c) {
    return absl::DataLossError(
        absl::StrFormat("%s has CRC-32C %08x where %08x was announced; "
                        "upload the shard again",
                        Name(), crc32c_, expected_.crc32c));
  }
  return absl::OkStatus();
}

absl::Status ShardUpload::Finish() {
  if (!status_.ok() || complete_) return status_;
  absl::Status status = CheckWhole();
  if (status.ok()) status = file_->Sync();
  if (status.ok()) status = file_->Close();
  if (!status.ok()) return Fail(std::move(status));
  const absl::StatusOr<std::string> replaced =
      owner_->CompleteShard(id_, expected_);
  if (!replaced.ok()) return Fail(replaced.status());
  complete_ = true;
  if (!replaced->empty()) RemoveFile(*replaced);
  return absl::OkStatus();
}

absl::Status CheckRanges(const std::vector<ByteRange>& ranges, int64_t bytes) {
  int64_t end = 0;
  for (const ByteRange& range : ranges) {
    if (range.offset >= end && range.bytes > 0 &&
        range.bytes <= bytes - range.offset) {
      end = range.offset + range.bytes;
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the range of ", range.bytes, " bytes from byte ", range.offset,
        " on is empty, not in the shard's ", bytes,
        " bytes, or begins before byte ", end, ", where the one before ends"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ShardChunk>> ShardDownload::Next() {
  while (range_ < ranges_.size() && taken_ == ranges_[range_].bytes) {
    ++range_;
    taken_ = 0;
  }
  if (range_ == ranges_.size()) {
    if (!whole_ || crc32c_ == shard_.crc32c) return std::nullopt;
    return absl::DataLossError(absl::StrCat(
        "shard ", shard_.shard, " (file ", shard_.file,
        ") is damaged on the coordinator's disk: its checksum differs; use an "
        "older checkpoint"));
  }
  ShardChunk chunk;
  chunk.offset = ranges_[range_].offset + taken_;
  const size_t count =
      std::min<int64_t>(ranges_[range_].bytes - taken_, chunk_bytes_);
  const std::shared_ptr<char[]> memory(new char[count]);
  COXSWAIN_ASSIGN_OR_RETURN(const size_t got,
                            file_->ReadInto(chunk.offset, count, memory.get()));
  if (got != count) {
    return absl::DataLossError(absl::StrCat(
        "shard ", shard_.shard, " (file ", shard_.file, ") ends at byte ",
        chunk.offset + static_cast<int64_t>(got), " of ", shard_.bytes,
        "; use an older checkpoint"));
  }
  chunk.data = absl::string_view(memory.get(), count);
  chunk.owner = memory;
  chunk.crc32c = Crc32c(chunk.data);
  crc32c_ = Crc32cConcat(crc32c_, chunk.crc32c, count);
  taken_ += static_cast<int64_t>(count);
  return chunk;
}

}  // namespace coxswain::server
