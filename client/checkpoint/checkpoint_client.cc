#include "client/checkpoint/checkpoint_client.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/checkpoint/range_download.h"
#include "client/rpc/member_context.h"
#include "proto/checkpoint.pb.h"

namespace coxswain {
namespace {

// The size of chunks where the coordinator sets none.
constexpr int64_t kDefaultChunkBytes = int64_t{256} * 1024;

constexpr int64_t kMostReserved = int64_t{4} << 30;

CheckpointDescription FromProto(const v1::CheckpointInfo& info) {
  CheckpointDescription checkpoint;
  checkpoint.id = info.checkpoint_id();
  checkpoint.job = info.job();
  checkpoint.step = info.step();
  checkpoint.shards = info.shards();
  checkpoint.metadata = {info.metadata().begin(), info.metadata().end()};
  checkpoint.bytes = info.bytes();
  checkpoint.created = absl::FromUnixMillis(info.created_unix_ms());
  return checkpoint;
}

// Puts a downloaded shard together and checks it on the way.
class Assembly {
 public:
  Assembly(absl::string_view id, int shard) : id_(id), shard_(shard) {}

  // `data` is what the chunk holds, if it is one.
  absl::Status Take(const v1::DownloadChunk& message,
                    absl::Span<const absl::string_view> data) {
    return message.has_header() ? TakeHeader(message.header())
                                : TakeChunk(message.chunk(), data);
  }

  absl::StatusOr<std::string> Finish() {
    if (!has_header_) return DamagedShard(id_, shard_, "there is no header");
    if (Size() != header_.bytes()) {
      return DamagedShard(
          id_, shard_,
          absl::StrFormat("%d of %d bytes came", Size(), header_.bytes()));
    }
    if (crc32c_ != header_.crc32c()) {
      return DamagedShard(id_, shard_,
                          absl::StrFormat("CRC-32C %08x instead of %08x",
                                          crc32c_, header_.crc32c()));
    }
    return std::move(bytes_);
  }

 private:
  int64_t Size() const { return static_cast<int64_t>(bytes_.size()); }

  absl::Status TakeHeader(const v1::DownloadHeader& header) {
    if (has_header_) return DamagedShard(id_, shard_, "a second header");
    has_header_ = true;
    header_ = header;
    // So that it need not move as it grows; not more than what is plausible.
    bytes_.reserve(std::clamp<int64_t>(header.bytes(), 0, kMostReserved));
    return absl::OkStatus();
  }

  absl::Status TakeChunk(const v1::Chunk& chunk,
                         absl::Span<const absl::string_view> data) {
    if (!has_header_)
      return DamagedShard(id_, shard_, "a chunk before the header");
    int64_t count = 0;
    for (const absl::string_view piece : data) {
      count += static_cast<int64_t>(piece.size());
    }
    if (chunk.offset() != Size() || count > header_.bytes() - Size()) {
      return DamagedShard(
          id_, shard_,
          absl::StrFormat("a chunk of %d bytes at %d where %d of %d bytes are",
                          count, chunk.offset(), Size(), header_.bytes()));
    }
    uint32_t crc = 0;
    for (const absl::string_view piece : data) {
      crc = Crc32c(piece, crc);
      bytes_.append(piece.data(), piece.size());
    }
    if (crc != chunk.crc32c()) {
      return DamagedShard(
          id_, shard_,
          absl::StrFormat("wrong CRC-32C of the chunk at %d", chunk.offset()));
    }
    crc32c_ = Crc32cConcat(crc32c_, crc, count);
    return absl::OkStatus();
  }

  const std::string id_;
  const int shard_;
  bool has_header_ = false;
  v1::DownloadHeader header_;
  std::string bytes_;
  uint32_t crc32c_ = 0;
};

// What is uploaded, with the checksum of each chunk once it is known how large
// they may be.
struct Shard {
  absl::string_view bytes;
  std::shared_ptr<const void> owner;
  int64_t chunk_bytes = 0;
  std::vector<uint32_t> chunk_crcs;
  uint32_t crc32c = 0;

  void SumUp(int64_t chunk) {
    if (chunk == chunk_bytes) return;
    chunk_bytes = chunk;
    chunk_crcs.clear();
    crc32c = 0;
    for (size_t at = 0; at < bytes.size(); at += chunk) {
      const absl::string_view data = bytes.substr(at, chunk);
      chunk_crcs.push_back(Crc32c(data));
      crc32c = Crc32cConcat(crc32c, chunk_crcs.back(), data.size());
    }
  }
};

absl::Status Upload(MemberContext& member, const v1::UploadHeader& header,
                    const Shard& shard, absl::Duration timeout) {
  const auto stream = member.stub().Upload(member.Call(timeout));
  v1::UploadRequest request;
  *request.mutable_header() = header;
  bool open = stream->Write(request);
  for (size_t i = 0; open && i < shard.chunk_crcs.size(); ++i) {
    const int64_t offset = static_cast<int64_t>(i) * shard.chunk_bytes;
    open = stream->WriteChunk(offset,
                              shard.bytes.substr(offset, shard.chunk_bytes),
                              shard.chunk_crcs[i], shard.owner);
  }
  return stream->Finish();
}

// Begins the checkpoint, or joins it, and uploads the shard; fills in both
// messages. UNAVAILABLE: to be tried again, as a coordinator that was started
// again knows nothing of open checkpoints.
absl::Status SaveOnce(MemberContext& member, v1::BeginRequest* begin,
                      v1::UploadHeader* header, Shard* shard,
                      absl::Duration left) {
  const absl::Time deadline = member.policy().clock->Now() + left;
  *begin->mutable_fence() = member.NewRequest();
  auto opened = member.stub().BeginCheckpoint(*begin, member.Call(left));
  if (!opened.ok()) return opened.status();
  header->set_checkpoint_id(opened->checkpoint_id());
  // Before the stream is opened, because the coordinator waits for its header
  // only a while, and a large shard takes a while to sum up.
  shard->SumUp(opened->chunk_bytes() > 0 ? opened->chunk_bytes()
                                         : kDefaultChunkBytes);
  header->set_crc32c(shard->crc32c);
  *header->mutable_fence() = member.NewRequest();
  left = deadline - member.policy().clock->Now();
  absl::Status uploaded = Upload(member, *header, *shard, left);
  const int64_t term = header->fence().term();
  const bool lost = absl::IsNotFound(uploaded) && member.term().Get() > term;
  if (!lost && !TermOfStaleFence(uploaded).has_value()) return uploaded;
  left = deadline - member.policy().clock->Now();
  member.term().WaitForNewer(term, left, &member.ended());
  return absl::UnavailableError(uploaded.message());
}

absl::StatusOr<std::string> Download(MemberContext& member,
                                     absl::string_view id, int shard,
                                     absl::Duration timeout) {
  v1::DownloadRequest request;
  request.set_job(member.job());
  request.set_checkpoint_id(std::string(id));
  request.set_shard(shard);
  const auto stream = member.stub().Download(request, member.Call(timeout));
  Assembly assembly(id, shard);
  v1::DownloadChunk message;
  std::vector<absl::string_view> data;
  while (stream->ReadPieces(&message, &data)) {
    COXSWAIN_RETURN_IF_ERROR(assembly.Take(message, data));
  }
  COXSWAIN_RETURN_IF_ERROR(stream->Finish());
  return assembly.Finish();
}

}  // namespace

absl::StatusOr<std::string> CheckpointClient::Save(
    int64_t step, int shard, int shards,
    const std::map<std::string, std::string>& metadata, absl::string_view bytes,
    std::shared_ptr<const void> owner) {
  v1::BeginRequest begin;
  begin.set_step(step);
  begin.set_shards(shards);
  begin.mutable_metadata()->insert(metadata.begin(), metadata.end());
  v1::UploadHeader header;
  header.set_shard(shard);
  header.set_bytes(static_cast<int64_t>(bytes.size()));
  Shard source;
  source.bytes = bytes;
  source.owner = std::move(owner);
  COXSWAIN_RETURN_IF_ERROR(member_->Outcome(CallWithRetries(
      member_->policy(), member_->Call(transfer_timeout_), "Checkpoint/Upload",
      member_->stub().address(), [&](absl::Duration left) {
        return SaveOnce(*member_, &begin, &header, &source, left);
      })));
  return header.checkpoint_id();
}

absl::StatusOr<CheckpointDescription> CheckpointClient::Commit(
    absl::string_view id, const CheckpointRetention& retention) {
  v1::CommitRequest request;
  request.set_keep_last(retention.keep_last);
  request.set_keep_every(retention.keep_every);
  *request.mutable_fence() = member_->NewRequest();
  request.set_checkpoint_id(std::string(id));
  auto response = member_->stub().CommitCheckpoint(
      request, member_->Call(transfer_timeout_));
  if (!response.ok()) return member_->Outcome(response.status());
  return FromProto(response->checkpoint());
}

absl::StatusOr<std::vector<CheckpointDescription>> CheckpointClient::List() {
  v1::ListRequest request;
  request.set_job(member_->job());
  auto response = member_->stub().ListCheckpoints(request, member_->Call());
  if (!response.ok()) return member_->Outcome(response.status());
  std::vector<CheckpointDescription> checkpoints;
  for (const v1::CheckpointInfo& info : response->checkpoints()) {
    checkpoints.push_back(FromProto(info));
  }
  return checkpoints;
}

absl::StatusOr<std::string> CheckpointClient::LoadShard(absl::string_view id,
                                                        int shard) {
  std::string bytes;
  absl::Status status =
      CallWithRetries(member_->policy(), member_->Call(transfer_timeout_),
                      "Checkpoint/Download", member_->stub().address(),
                      [&](absl::Duration left) {
                        auto downloaded = Download(*member_, id, shard, left);
                        if (!downloaded.ok()) return downloaded.status();
                        bytes = *std::move(downloaded);
                        return absl::OkStatus();
                      });
  if (!status.ok()) return member_->Outcome(status);
  return bytes;
}

absl::StatusOr<std::vector<std::string>> CheckpointClient::LoadAll(
    const CheckpointDescription& checkpoint) {
  std::vector<std::string> shards;
  for (int shard = 0; shard < checkpoint.shards; ++shard) {
    COXSWAIN_ASSIGN_OR_RETURN(std::string bytes,
                              LoadShard(checkpoint.id, shard));
    shards.push_back(std::move(bytes));
  }
  return shards;
}

absl::StatusOr<std::vector<int64_t>> CheckpointClient::ShardSizes(
    absl::string_view id) {
  v1::ShowRequest request;
  request.set_job(member_->job());
  request.set_checkpoint_id(std::string(id));
  const auto shown = member_->stub().ShowCheckpoint(request, member_->Call());
  if (!shown.ok()) return member_->Outcome(shown.status());
  std::vector<int64_t> sizes;
  for (const v1::ShardInfo& shard : shown->shards()) {
    sizes.push_back(shard.bytes());
  }
  return sizes;
}

absl::Status CheckpointClient::LoadRanges(absl::string_view id, int shard,
                                          const std::vector<ShardRange>& ranges,
                                          const TakeBytes& take) {
  RangeDownload download(id, shard, ranges, take);
  while (!download.done()) {
    COXSWAIN_RETURN_IF_ERROR(member_->Outcome(CallWithRetries(
        member_->policy(), member_->Call(transfer_timeout_),
        "Checkpoint/Download", member_->stub().address(),
        [&](absl::Duration left) { return download.Once(*member_, left); })));
  }
  return absl::OkStatus();
}

absl::Status CheckpointClient::Delete(absl::string_view id) {
  v1::DeleteRequest request;
  *request.mutable_fence() = member_->NewRequest();
  request.set_checkpoint_id(std::string(id));
  return member_->Outcome(
      member_->stub().DeleteCheckpoint(request, member_->Call()).status());
}

}  // namespace coxswain
