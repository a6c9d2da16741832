#include "server/rpc/checkpoint_streams.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/rpc/call.h"
#include "server/rpc/proto_conversion.h"
#include "transport/chunk_codec.h"

namespace coxswain::server {
namespace {

// gRPC runs the reactions one after the other, a disk thread runs Step in
// between, and gRPC owns the object until OnDone.
class UploadCall : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  UploadCall(const RpcOptions& options, CheckpointStore* store,
             const FenceValidator* validator, DiskThreads* disk,
             grpc::CallbackServerContext* context)
      : options_(options),
        store_(store),
        validator_(validator),
        disk_(disk),
        context_(context) {
    deadline_.emplace(context, options_.first_message_timeout,
                      "the header of the upload did not come");
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    disk_->Run([this, ok] { Step(ok); });
  }

  void OnDone() override { delete this; }

 private:
  void Step(bool ok) {
    const absl::Status status = ok ? Take() : End();
    request_.Clear();
    if (ok && status.ok()) {
      StartRead(&request_);
      return;
    }
    // Before the answer, so that who has it finds everything in order.
    upload_.reset();
    Finish(ToGrpcStatus(status));
  }

  absl::Status Take() {
    v1::UploadRequest message;
    COXSWAIN_ASSIGN_OR_RETURN(const std::optional<bulk::Chunk> chunk,
                              bulk::Decode(request_, &message));
    if (chunk.has_value()) return TakeChunk(*chunk);
    if (message.has_header()) return TakeHeader(message.header());
    return absl::InvalidArgumentError(
        "a message of an upload is neither header nor chunk");
  }

  absl::Status TakeHeader(const v1::UploadHeader& header) {
    if (upload_ != nullptr) {
      return absl::InvalidArgumentError("an upload has one header");
    }
    const Fence fence = FromProto(header.fence());
    COXSWAIN_RETURN_IF_ERROR(AdmitWriter(*validator_, fence));
    COXSWAIN_ASSIGN_OR_RETURN(
        upload_,
        store_->StartUpload(fence, header.checkpoint_id(), header.shard(),
                            header.bytes(), header.crc32c()));
    deadline_.emplace(context_, options_.transfer_timeout,
                      "the upload did not end");
    return absl::OkStatus();
  }

  absl::Status TakeChunk(const bulk::Chunk& chunk) {
    if (upload_ == nullptr) {
      return absl::InvalidArgumentError("an upload begins with its header");
    }
    return upload_->Append(chunk.offset, chunk.data.pieces(), chunk.crc32c);
  }

  // The client has sent everything, or is gone.
  absl::Status End() {
    if (context_->IsCancelled()) {
      return absl::CancelledError("the client cancelled the call");
    }
    if (upload_ == nullptr) {
      return absl::InvalidArgumentError("an upload begins with its header");
    }
    return upload_->Finish();
  }

  const RpcOptions options_;
  CheckpointStore* const store_;
  const FenceValidator* const validator_;
  DiskThreads* const disk_;
  grpc::CallbackServerContext* const context_;
  std::optional<CallDeadline> deadline_;
  grpc::ByteBuffer request_;
  std::unique_ptr<ShardUpload> upload_;
};

using NextChunk = absl::StatusOr<std::optional<ShardChunk>>;

// A disk thread reads a chunk while gRPC writes the one before. Whichever of
// the two ends last starts both again. gRPC owns the object until OnDone,
// which comes after Finish and the last write.
class DownloadCall : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  DownloadCall(const RpcOptions& options, DiskThreads* disk,
               grpc::CallbackServerContext* context)
      : disk_(disk) {
    deadline_.emplace(context, options.transfer_timeout,
                      "the download did not end");
  }

  // Opens the shard and sends its description.
  void Begin(CheckpointStore* store, v1::DownloadRequest request) {
    disk_->Run([this, store, request = std::move(request)] {
      std::vector<ByteRange> ranges;
      for (const v1::ByteRange& range : request.ranges()) {
        ranges.push_back({range.offset(), range.bytes()});
      }
      ranges_ = !ranges.empty();
      Open(store->StartDownload(request.job(), request.checkpoint_id(),
                                request.shard(), std::move(ranges)));
    });
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      gone_ = gone_ || !ok;
      if (!next_.has_value()) {
        written_ = true;
        return;
      }
    }
    GoOn();
  }

  void OnDone() override { delete this; }

 private:
  void Open(absl::StatusOr<std::unique_ptr<ShardDownload>> download) {
    if (!download.ok()) {
      Finish(ToGrpcStatus(download.status()));
      return;
    }
    download_ = *std::move(download);
    v1::DownloadChunk message;
    message.mutable_header()->set_bytes(download_->bytes());
    message.mutable_header()->set_crc32c(download_->crc32c());
    message.mutable_header()->set_ranges(ranges_);
    buffer_ = bulk::Encode(message);
    ReadAhead();
    StartWrite(&buffer_);
  }

  void ReadAhead() {
    disk_->Run([this] {
      NextChunk next = download_->Next();
      {
        MutexLock lock(&mutex_);
        next_ = std::move(next);
        if (!written_) return;
      }
      GoOn();
    });
  }

  // What was sent is written, and what comes next is read. No lock is held
  // where gRPC may run, and end, the call.
  void GoOn() {
    NextChunk next = std::nullopt;
    bool gone = false;
    {
      MutexLock lock(&mutex_);
      next = *std::move(next_);
      next_.reset();
      written_ = false;
      gone = gone_;
    }
    if (gone || !next.ok() || !next->has_value()) {
      download_.reset();
      Finish(gone ? grpc::Status(grpc::StatusCode::CANCELLED,
                                 "the client has ended the call")
                  : ToGrpcStatus(next.status()));
      return;
    }
    const ShardChunk& chunk = **next;
    buffer_ =
        bulk::EncodeChunk(v1::DownloadChunk::kChunkFieldNumber, chunk.offset,
                          chunk.crc32c, bulk::Lend(chunk.data, chunk.owner));
    ReadAhead();
    StartWrite(&buffer_);
  }

  DiskThreads* const disk_;
  std::optional<CallDeadline> deadline_;
  bool ranges_ = false;
  std::unique_ptr<ShardDownload> download_;
  grpc::ByteBuffer buffer_;
  Mutex mutex_;
  std::optional<NextChunk> next_ ABSL_GUARDED_BY(mutex_);  // read, not written
  bool written_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
};

// Between two messages of progress.
constexpr int64_t kStepBytes = int64_t{16} << 20;
// Enough to see what is wrong with a disk.
constexpr size_t kMaxNamed = 16;

// A piece of work on a disk thread ends with a write or with the end of the
// call, and a write that is done begins the next: one at a time runs. gRPC owns
// the object until OnDone.
class VerifyCall : public grpc::ServerWriteReactor<v1::VerifyProgress> {
 public:
  VerifyCall(const RpcOptions& options, CheckpointStore* store,
             DiskThreads* disk, grpc::CallbackServerContext* context,
             v1::VerifyRequest request)
      : options_(options),
        store_(store),
        disk_(disk),
        context_(context),
        request_(std::move(request)) {
    deadline_.emplace(context, options.transfer_timeout,
                      "the progress was not read");
    disk_->Run([this] { Begin(); });
  }

  void OnWriteDone(bool ok) override {
    disk_->Run([this, ok] { Step(ok); });
  }
  void OnDone() override { delete this; }

 private:
  void Begin() {
    auto record = store_->Find(request_.job(), request_.checkpoint_id());
    absl::Status status = record.status();
    if (status.ok()) {
      progress_.set_shards(record->shard_count);
      progress_.set_bytes(record->TotalBytes());
      status =
          Note(store_->CheckManifest(request_.job(), request_.checkpoint_id()));
    }
    if (!status.ok()) return End(status);
    StartWrite(&progress_);
  }

  void Step(bool ok) {
    if (!ok || context_->IsCancelled()) {
      return End(absl::CancelledError("the client has ended the call"));
    }
    if (progress_.shards_done() == progress_.shards()) return End(Verdict());
    const absl::Status status = Read();
    if (!status.ok()) return End(status);
    StartWrite(&progress_);
  }

  // Some of the shard that it is at, opening it first.
  absl::Status Read() {
    const int shard = progress_.shards_done();
    if (shard_ == nullptr) {
      auto opened = store_->StartDownload(request_.job(),
                                          request_.checkpoint_id(), shard);
      if (!opened.ok()) return Skip(opened.status());
      shard_ = *std::move(opened);
      deadline_.emplace(
          context_, options_.transfer_timeout,
          absl::StrCat("verifying shard ", shard, " did not end"));
    }
    for (int64_t done = 0; done < kStepBytes;) {
      const auto chunk = shard_->Next();
      if (!chunk.ok()) return Skip(chunk.status());
      if (!chunk->has_value()) return Skip(absl::OkStatus());
      done += static_cast<int64_t>((*chunk)->data.size());
      Count((*chunk)->data.size());
    }
    return absl::OkStatus();
  }

  void Count(int64_t bytes) {
    progress_.set_bytes_done(progress_.bytes_done() + bytes);
  }

  // The shard is read, or what is wrong with it is known.
  absl::Status Skip(absl::Status status) {
    progress_.set_shards_done(progress_.shards_done() + 1);
    shard_.reset();
    return Note(std::move(status));
  }

  // What is damaged does not keep us from looking at the rest.
  absl::Status Note(absl::Status status) {
    if (!absl::IsDataLoss(status)) return status;
    ++damaged_;
    if (damages_.size() < kMaxNamed) damages_.emplace_back(status.message());
    return absl::OkStatus();
  }

  absl::Status Verdict() const {
    if (damages_.empty()) return absl::OkStatus();
    std::string text = absl::StrCat("checkpoint ", request_.checkpoint_id(),
                                    ": ", absl::StrJoin(damages_, "; "));
    if (damaged_ > damages_.size()) {
      absl::StrAppend(&text, "; and ", damaged_ - damages_.size(), " more");
    }
    return absl::DataLossError(text);
  }

  void End(const absl::Status& status) {
    shard_.reset();
    Finish(ToGrpcStatus(status));
  }

  const RpcOptions options_;
  CheckpointStore* const store_;
  DiskThreads* const disk_;
  grpc::CallbackServerContext* const context_;
  const v1::VerifyRequest request_;
  std::optional<CallDeadline> deadline_;
  std::unique_ptr<ShardDownload> shard_;
  v1::VerifyProgress progress_;
  size_t damaged_ = 0;
  std::vector<std::string> damages_;
};

}  // namespace

absl::Status AdmitWriter(const FenceValidator& validator, const Fence& fence) {
  return IsOperator(fence) ? validator.AdmitOperator(fence)
                           : validator.Admit(fence).status();
}

grpc::ServerReadReactor<grpc::ByteBuffer>* StartUpload(
    const RpcOptions& options, CheckpointStore* store,
    const FenceValidator* validator, DiskThreads* disk,
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  *response = bulk::Encode(v1::UploadResponse());
  return new UploadCall(options, store, validator, disk, context);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDownload(
    const RpcOptions& options, CheckpointStore* store, DiskThreads* disk,
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  auto* call = new DownloadCall(options, disk, context);
  v1::DownloadRequest message;
  const absl::Status status = bulk::DecodeMessage(*request, &message);
  if (status.ok()) {
    call->Begin(store, std::move(message));
  } else {
    call->Finish(ToGrpcStatus(status));
  }
  return call;
}

grpc::ServerWriteReactor<v1::VerifyProgress>* StartVerify(
    const RpcOptions& options, CheckpointStore* store, DiskThreads* disk,
    grpc::CallbackServerContext* context, const v1::VerifyRequest& request) {
  return new VerifyCall(options, store, disk, context, request);
}

}  // namespace coxswain::server
