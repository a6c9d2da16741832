#include "client/checkpoint/checkpoint_client.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// Chunks when the coordinator does not say how large they may be.
constexpr int64_t kDefaultChunkBytes = int64_t{256} * 1024;

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

absl::Status Damaged(absl::string_view id, int shard, absl::string_view what) {
  return absl::DataLossError(absl::StrFormat(
      "shard %d of checkpoint '%s' arrived damaged: %s", shard, id, what));
}

// Puts a downloaded shard together and checks it on the way.
class Assembly {
 public:
  Assembly(absl::string_view id, int shard) : id_(id), shard_(shard) {}

  absl::Status Take(const v1::DownloadChunk& message) {
    return message.has_header() ? TakeHeader(message.header())
                                : TakeChunk(message.chunk());
  }

  absl::StatusOr<std::string> Finish() {
    if (!has_header_) return Damaged(id_, shard_, "there is no header");
    if (Size() != header_.bytes()) {
      return Damaged(
          id_, shard_,
          absl::StrFormat("%d of %d bytes came", Size(), header_.bytes()));
    }
    const uint32_t crc = Crc32c(bytes_);
    if (crc != header_.crc32c()) {
      return Damaged(id_, shard_,
                     absl::StrFormat("CRC-32C %08x instead of %08x", crc,
                                     header_.crc32c()));
    }
    return std::move(bytes_);
  }

 private:
  int64_t Size() const { return static_cast<int64_t>(bytes_.size()); }

  absl::Status TakeHeader(const v1::DownloadHeader& header) {
    if (has_header_) return Damaged(id_, shard_, "a second header");
    has_header_ = true;
    header_ = header;
    return absl::OkStatus();
  }

  absl::Status TakeChunk(const v1::Chunk& chunk) {
    if (!has_header_) return Damaged(id_, shard_, "a chunk before the header");
    if (chunk.offset() != Size() ||
        static_cast<int64_t>(chunk.data().size()) > header_.bytes() - Size()) {
      return Damaged(
          id_, shard_,
          absl::StrFormat("a chunk of %d bytes at %d where %d of %d bytes are",
                          chunk.data().size(), chunk.offset(), Size(),
                          header_.bytes()));
    }
    if (Crc32c(chunk.data()) != chunk.crc32c()) {
      return Damaged(
          id_, shard_,
          absl::StrFormat("wrong CRC-32C of the chunk at %d", chunk.offset()));
    }
    bytes_.append(chunk.data());
    return absl::OkStatus();
  }

  const std::string id_;
  const int shard_;
  bool has_header_ = false;
  v1::DownloadHeader header_;
  std::string bytes_;
};

}  // namespace

absl::StatusOr<std::string> CheckpointClient::Save(
    int64_t step, int shard, int shards,
    const std::map<std::string, std::string>& metadata,
    absl::string_view bytes) {
  v1::BeginRequest begin;
  begin.set_step(step);
  begin.set_shards(shards);
  begin.mutable_metadata()->insert(metadata.begin(), metadata.end());
  // Made before the stream is opened, because the coordinator waits for it
  // only a while, and a large shard takes a while to sum up.
  v1::UploadHeader header;
  header.set_shard(shard);
  header.set_bytes(static_cast<int64_t>(bytes.size()));
  header.set_crc32c(Crc32c(bytes));
  COXSWAIN_RETURN_IF_ERROR(membership_->Outcome(CallWithRetries(
      membership_->policy(), membership_->Call(transfer_timeout_),
      [&](absl::Duration left) {
        return SaveOnce(&begin, &header, bytes, left);
      })));
  return header.checkpoint_id();
}

// A coordinator that was started again knows nothing of open checkpoints: then
// it is begun again, there.
absl::Status CheckpointClient::SaveOnce(v1::BeginRequest* begin,
                                        v1::UploadHeader* header,
                                        absl::string_view bytes,
                                        absl::Duration left) {
  const absl::Time deadline = membership_->policy().clock->Now() + left;
  *begin->mutable_fence() = membership_->NewRequest();
  CallOptions call = membership_->Call();
  call.timeout = std::min(call.timeout, left);
  auto opened = membership_->stub().BeginCheckpoint(*begin, call);
  if (!opened.ok()) return opened.status();
  header->set_checkpoint_id(opened->checkpoint_id());
  const int64_t chunk_bytes =
      opened->chunk_bytes() > 0 ? opened->chunk_bytes() : kDefaultChunkBytes;
  *header->mutable_fence() = membership_->NewRequest();
  left = deadline - membership_->policy().clock->Now();
  absl::Status uploaded = Upload(*header, chunk_bytes, bytes, left);
  const int64_t term = header->fence().term();
  const bool lost =
      absl::IsNotFound(uploaded) && membership_->term().Get() > term;
  if (!lost && !TermOfStaleFence(uploaded).has_value()) return uploaded;
  left = deadline - membership_->policy().clock->Now();
  membership_->term().WaitForNewer(term, left, &membership_->ended());
  return absl::UnavailableError(uploaded.message());
}

absl::Status CheckpointClient::Upload(const v1::UploadHeader& header,
                                      int64_t chunk_bytes,
                                      absl::string_view bytes,
                                      absl::Duration timeout) {
  const auto stream = membership_->stub().Upload(membership_->Call(timeout));
  v1::UploadRequest request;
  *request.mutable_header() = header;
  bool open = stream->Write(request);
  for (size_t offset = 0; open && offset < bytes.size();
       offset += chunk_bytes) {
    const absl::string_view data = bytes.substr(offset, chunk_bytes);
    v1::Chunk* chunk = request.mutable_chunk();
    chunk->set_offset(static_cast<int64_t>(offset));
    chunk->set_data(data.data(), data.size());
    chunk->set_crc32c(Crc32c(data));
    open = stream->Write(request);
  }
  return stream->Finish();
}

absl::StatusOr<CheckpointDescription> CheckpointClient::Commit(
    absl::string_view id) {
  v1::CommitRequest request;
  *request.mutable_fence() = membership_->NewRequest();
  request.set_checkpoint_id(std::string(id));
  auto response =
      membership_->stub().CommitCheckpoint(request, membership_->Call());
  if (!response.ok()) return membership_->Outcome(response.status());
  return FromProto(response->checkpoint());
}

absl::StatusOr<std::vector<CheckpointDescription>> CheckpointClient::List() {
  v1::ListRequest request;
  request.set_job(membership_->job());
  auto response =
      membership_->stub().ListCheckpoints(request, membership_->Call());
  if (!response.ok()) return membership_->Outcome(response.status());
  std::vector<CheckpointDescription> checkpoints;
  for (const v1::CheckpointInfo& info : response->checkpoints()) {
    checkpoints.push_back(FromProto(info));
  }
  return checkpoints;
}

absl::StatusOr<std::string> CheckpointClient::LoadShard(absl::string_view id,
                                                        int shard) {
  std::string bytes;
  absl::Status status = CallWithRetries(
      membership_->policy(), membership_->Call(transfer_timeout_),
      [&](absl::Duration left) {
        auto downloaded = Download(id, shard, left);
        if (!downloaded.ok()) return downloaded.status();
        bytes = *std::move(downloaded);
        return absl::OkStatus();
      });
  if (!status.ok()) return membership_->Outcome(status);
  return bytes;
}

absl::StatusOr<std::string> CheckpointClient::Download(absl::string_view id,
                                                       int shard,
                                                       absl::Duration timeout) {
  v1::DownloadRequest request;
  request.set_job(membership_->job());
  request.set_checkpoint_id(std::string(id));
  request.set_shard(shard);
  const auto stream =
      membership_->stub().Download(request, membership_->Call(timeout));
  Assembly assembly(id, shard);
  v1::DownloadChunk message;
  while (stream->Read(&message)) {
    COXSWAIN_RETURN_IF_ERROR(assembly.Take(message));
  }
  COXSWAIN_RETURN_IF_ERROR(stream->Finish());
  return assembly.Finish();
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

absl::Status CheckpointClient::Delete(absl::string_view id) {
  v1::DeleteRequest request;
  *request.mutable_fence() = membership_->NewRequest();
  request.set_checkpoint_id(std::string(id));
  return membership_->Outcome(
      membership_->stub()
          .DeleteCheckpoint(request, membership_->Call())
          .status());
}

}  // namespace coxswain
