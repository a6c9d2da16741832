#include "server/rpc/checkpoint_download.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/grpc_status.h"
#include "base/mutex.h"
#include "proto/bulk/chunk_codec.h"
#include "proto/checkpoint.pb.h"
#include "server/rpc/call_deadline.h"

namespace coxswain::server {
namespace {

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

  // Opens the shard and says what it is.
  void Begin(CheckpointStore* store, v1::DownloadRequest request) {
    disk_->Run([this, store, request = std::move(request)] {
      Open(store->StartDownload(request.job(), request.checkpoint_id(),
                                request.shard()));
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
      Finish(
          gone ? grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone")
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
  std::unique_ptr<ShardDownload> download_;
  grpc::ByteBuffer buffer_;
  Mutex mutex_;
  std::optional<NextChunk> next_ ABSL_GUARDED_BY(mutex_);  // read, not written
  bool written_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

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

}  // namespace coxswain::server
