#include "cli/checkpoint_transfer.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "cli/checkpoint_folder.h"

namespace coxswain {
namespace {

// The coordinator's own limit for one shard.
constexpr absl::Duration kTransfer = absl::Hours(1);
// A commit syncs what was uploaded, and a deletion removes it.
constexpr absl::Duration kCommit = absl::Minutes(5);
constexpr int64_t kPiece = 1 << 20;

CallOptions Within(absl::Duration timeout) {
  CallOptions call;
  call.timeout = timeout;
  return call;
}

server::CheckpointRecord RecordOf(const v1::ShowResponse& shown) {
  const v1::CheckpointInfo& info = shown.checkpoint();
  server::CheckpointRecord record;
  record.id = info.checkpoint_id();
  record.job = info.job();
  record.step = info.step();
  record.generation = Generation(info.generation());
  record.shard_count = info.shards();
  record.metadata = {info.metadata().begin(), info.metadata().end()};
  record.created = absl::FromUnixMillis(info.created_unix_ms());
  for (const v1::ShardInfo& shard : shown.shards()) {
    record.shards[shard.shard()] = {shard.shard(), shard.file(), shard.bytes(),
                                    shard.crc32c()};
  }
  return record;
}

// Writes one shard as it arrives, and compares it with its checksum.
class ShardReceiver {
 public:
  ShardReceiver(const server::ShardRecord& shard, server::WritableFile* file,
                Progress* progress)
      : shard_(shard), file_(file), progress_(progress) {}

  absl::Status Take(const v1::DownloadChunk& message,
                    const std::vector<absl::string_view>& data) {
    if (message.has_header()) return absl::OkStatus();
    uint32_t crc = 0;
    int64_t bytes = 0;
    for (const absl::string_view piece : data) {
      crc = Crc32c(piece, crc);
      bytes += static_cast<int64_t>(piece.size());
    }
    if (message.chunk().offset() != received_ ||
        bytes > shard_.bytes - received_) {
      return Damaged("chunks are missing, repeated or out of order");
    }
    if (crc != message.chunk().crc32c()) return Damaged("a checksum differs");
    COXSWAIN_RETURN_IF_ERROR(file_->AppendAll(data));
    crc32c_ = Crc32cConcat(crc32c_, crc, bytes);
    received_ += bytes;
    progress_->Add(bytes);
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (received_ != shard_.bytes) {
      return Damaged(
          absl::StrCat(received_, " of ", shard_.bytes, " bytes arrived"));
    }
    if (crc32c_ != shard_.crc32c) return Damaged("its checksum differs");
    return SyncAndClose(file_);
  }

 private:
  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("shard ", shard_.shard, " arrived damaged: ", what));
  }

  const server::ShardRecord& shard_;
  server::WritableFile* const file_;
  Progress* const progress_;
  int64_t received_ = 0;
  uint32_t crc32c_ = 0;
};

absl::Status Receive(const Transfer& transfer,
                     const v1::CheckpointInfo& checkpoint,
                     const server::ShardRecord& shard, FolderWriter* writer,
                     Progress* progress) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto file, writer->CreateShard(shard));
  v1::DownloadRequest request;
  request.set_job(checkpoint.job());
  request.set_checkpoint_id(checkpoint.checkpoint_id());
  request.set_shard(shard.shard);
  const auto stream = transfer.stub->Download(request, Within(kTransfer));
  ShardReceiver receiver(shard, file.get(), progress);
  v1::DownloadChunk message;
  std::vector<absl::string_view> data;
  while (stream->ReadPieces(&message, &data)) {
    COXSWAIN_RETURN_IF_ERROR(receiver.Take(message, data));
  }
  const absl::Status ended = stream->Finish();
  if (!ended.ok()) {
    return ExplainCall(*transfer.stub,
                       absl::StrCat("did not send shard ", shard.shard), ended);
  }
  return receiver.Finish();
}

// Uploads a shard of an open import.
absl::Status Send(const Transfer& transfer, const v1::Fence& fence,
                  const v1::BeginResponse& open, const std::string& folder,
                  const server::ShardRecord& shard, Progress* progress) {
  const auto stream = transfer.stub->Upload(Within(kTransfer));
  v1::UploadRequest request;
  v1::UploadHeader* const header = request.mutable_header();
  *header->mutable_fence() = fence;
  header->set_checkpoint_id(open.checkpoint_id());
  header->set_shard(shard.shard);
  header->set_bytes(shard.bytes);
  header->set_crc32c(shard.crc32c);
  bool going = stream->Write(request);
  const absl::Status read = ReadShard(
      *transfer.files, folder, shard,
      open.chunk_bytes() > 0 ? open.chunk_bytes() : kPiece,
      [&](int64_t offset, absl::string_view data, uint32_t crc32c,
          const std::shared_ptr<const void>& owner) {
        going = going && stream->WriteChunk(offset, data, crc32c, owner);
        progress->Add(static_cast<int64_t>(data.size()));
        // The stream's status has the reason.
        return going ? absl::OkStatus() : absl::CancelledError("refused");
      });
  if (going) COXSWAIN_RETURN_IF_ERROR(read);
  const absl::Status ended = stream->Finish();
  if (ended.ok()) return ended;
  return ExplainCall(*transfer.stub,
                     absl::StrCat("did not accept shard ", shard.shard), ended);
}

absl::Status VerifyFolder(const Transfer& transfer, const std::string& folder,
                          const server::CheckpointRecord& record) {
  Progress progress(transfer.progress, "reading  ", record.TotalBytes());
  for (const auto& [index, shard] : record.shards) {
    COXSWAIN_RETURN_IF_ERROR(
        ReadShard(*transfer.files, folder, shard, kPiece,
                  [&progress](int64_t, absl::string_view data, uint32_t,
                              const std::shared_ptr<const void>&) {
                    progress.Add(static_cast<int64_t>(data.size()));
                    return absl::OkStatus();
                  }));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointInfo> SendAndCommit(
    const Transfer& transfer, const v1::Fence& fence,
    const v1::BeginResponse& open, const std::string& folder,
    const server::CheckpointRecord& record) {
  {
    Progress progress(transfer.progress, "importing", record.TotalBytes());
    for (const auto& [index, shard] : record.shards) {
      COXSWAIN_RETURN_IF_ERROR(
          Send(transfer, fence, open, folder, shard, &progress));
    }
  }
  v1::CommitRequest commit;
  *commit.mutable_fence() = fence;
  commit.set_checkpoint_id(open.checkpoint_id());
  const auto committed =
      transfer.stub->CommitCheckpoint(commit, Within(kCommit));
  if (committed.ok()) return committed->checkpoint();
  return ExplainCall(*transfer.stub, "did not commit the checkpoint",
                     committed.status());
}

void Discard(const Transfer& transfer, const v1::Fence& fence,
             const std::string& id) {
  v1::DeleteRequest remove;
  *remove.mutable_fence() = fence;
  remove.set_checkpoint_id(id);
  CallOptions call = Within(absl::Seconds(5));
  call.retry = false;
  static_cast<void>(transfer.stub->DeleteCheckpoint(remove, call));
}

}  // namespace

absl::Status ExportCheckpoint(const Transfer& transfer,
                              const v1::ShowResponse& checkpoint,
                              const std::string& folder) {
  const server::CheckpointRecord record = RecordOf(checkpoint);
  // The coordinator chooses the names, and the files are written to.
  COXSWAIN_RETURN_IF_ERROR(CheckShardFiles(record));
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto writer,
      FolderWriter::Create(transfer.files, folder, record, transfer.random));
  Progress progress(transfer.progress, "exporting", record.TotalBytes());
  for (const auto& [index, shard] : record.shards) {
    COXSWAIN_RETURN_IF_ERROR(Receive(transfer, checkpoint.checkpoint(), shard,
                                     writer.get(), &progress));
  }
  return writer->Finish();
}

absl::StatusOr<v1::CheckpointInfo> ImportCheckpoint(const Transfer& transfer,
                                                    const FoundJob& job,
                                                    const std::string& folder) {
  COXSWAIN_ASSIGN_OR_RETURN(const server::CheckpointRecord record,
                            ReadFolder(*transfer.files, folder));
  COXSWAIN_RETURN_IF_ERROR(VerifyFolder(transfer, folder, record));
  v1::BeginRequest begin;
  *begin.mutable_fence() = OperatorFence(job, transfer.random);
  begin.set_step(record.step);
  begin.set_shards(record.shard_count);
  begin.mutable_metadata()->insert(record.metadata.begin(),
                                   record.metadata.end());
  begin.mutable_import()->set_created_unix_ms(
      absl::ToUnixMillis(record.created));
  const auto open =
      transfer.stub->BeginCheckpoint(begin, Within(absl::Seconds(30)));
  if (!open.ok()) {
    return ExplainCall(*transfer.stub, "did not accept the checkpoint",
                       open.status());
  }
  auto imported = SendAndCommit(transfer, begin.fence(), *open, folder, record);
  if (!imported.ok()) Discard(transfer, begin.fence(), open->checkpoint_id());
  return imported;
}

absl::Status VerifyCheckpoint(const Transfer& transfer,
                              const v1::CheckpointInfo& checkpoint) {
  v1::VerifyRequest request;
  request.set_job(checkpoint.job());
  request.set_checkpoint_id(checkpoint.checkpoint_id());
  Progress progress(transfer.progress, "verifying", checkpoint.bytes());
  const auto stream =
      transfer.stub->Verify(request, Within(kTransfer * checkpoint.shards()));
  v1::VerifyProgress now;
  while (stream->Read(&now)) progress.Set(now.bytes_done());
  const absl::Status ended = stream->Finish();
  if (ended.ok()) return ended;
  return ExplainCall(*transfer.stub,
                     "found the checkpoint damaged, or could not read it",
                     ended);
}

}  // namespace coxswain
