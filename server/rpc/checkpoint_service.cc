#include "server/rpc/checkpoint_service.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "server/rpc/call.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

v1::CheckpointInfo ToProto(const CheckpointRecord& record) {
  v1::CheckpointInfo message;
  message.set_checkpoint_id(record.id);
  message.set_job(record.job);
  message.set_step(record.step);
  message.set_shards(record.shard_count);
  message.mutable_metadata()->insert(record.metadata.begin(),
                                     record.metadata.end());
  message.set_bytes(record.TotalBytes());
  message.set_created_unix_ms(absl::ToUnixMillis(record.created));
  message.set_generation(record.generation.value());
  return message;
}

// One upload. gRPC runs the reactions one after the other and owns the object
// until OnDone.
class UploadCall : public grpc::ServerReadReactor<v1::UploadRequest> {
 public:
  UploadCall(const RpcOptions& options, CheckpointStore* store,
             const FenceGate* gate, grpc::CallbackServerContext* context)
      : options_(options), store_(store), gate_(gate), context_(context) {
    deadline_.emplace(context, options_.first_message_timeout,
                      "the header of the upload did not come");
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(ToGrpcStatus(End()));
      return;
    }
    const absl::Status status = Take();
    if (!status.ok()) {
      Finish(ToGrpcStatus(status));
      return;
    }
    StartRead(&request_);
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Take() {
    switch (request_.kind_case()) {
      case v1::UploadRequest::kHeader:
        return TakeHeader(request_.header());
      case v1::UploadRequest::kChunk:
        return TakeChunk(request_.chunk());
      case v1::UploadRequest::KIND_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError(
        "a message of an upload is neither header nor chunk");
  }

  absl::Status TakeHeader(const v1::UploadHeader& header) {
    if (upload_ != nullptr) {
      return absl::InvalidArgumentError("an upload has one header");
    }
    const Fence fence = FromProto(header.fence());
    absl::Status admitted = gate_->Admit(fence).status();
    if (!admitted.ok()) return admitted;
    absl::StatusOr<std::unique_ptr<ShardUpload>> upload =
        store_->StartUpload(fence, header.checkpoint_id(), header.shard(),
                            header.bytes(), header.crc32c());
    if (!upload.ok()) return upload.status();
    upload_ = *std::move(upload);
    deadline_.emplace(context_, options_.transfer_timeout,
                      "the upload did not end");
    return absl::OkStatus();
  }

  absl::Status TakeChunk(const v1::Chunk& chunk) {
    if (upload_ == nullptr) {
      return absl::InvalidArgumentError("an upload begins with its header");
    }
    return upload_->Append(chunk.offset(), chunk.data(), chunk.crc32c());
  }

  // The client has sent everything, or is gone.
  absl::Status End() {
    if (context_->IsCancelled()) {
      return absl::CancelledError("the client gave up");
    }
    if (upload_ == nullptr) {
      return absl::InvalidArgumentError("an upload begins with its header");
    }
    return upload_->Finish();
  }

  const RpcOptions options_;
  CheckpointStore* const store_;
  const FenceGate* const gate_;
  grpc::CallbackServerContext* const context_;
  std::optional<CallDeadline> deadline_;
  v1::UploadRequest request_;
  std::unique_ptr<ShardUpload> upload_;
};

// One download. As UploadCall.
class DownloadCall : public grpc::ServerWriteReactor<v1::DownloadChunk> {
 public:
  DownloadCall(const RpcOptions& options, grpc::CallbackServerContext* context,
               absl::StatusOr<std::unique_ptr<ShardDownload>> download) {
    if (!download.ok()) {
      Finish(ToGrpcStatus(download.status()));
      return;
    }
    download_ = *std::move(download);
    deadline_.emplace(context, options.transfer_timeout,
                      "the download did not end");
    message_.mutable_header()->set_bytes(download_->bytes());
    message_.mutable_header()->set_crc32c(download_->crc32c());
    StartWrite(&message_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
      return;
    }
    absl::StatusOr<std::optional<ShardChunk>> next = download_->Next();
    if (!next.ok() || !next->has_value()) {
      Finish(ToGrpcStatus(next.status()));
      return;
    }
    ShardChunk& chunk = **next;
    message_.mutable_chunk()->set_offset(chunk.offset);
    message_.mutable_chunk()->set_data(std::move(chunk.data));
    message_.mutable_chunk()->set_crc32c(chunk.crc32c);
    StartWrite(&message_);
  }

  void OnDone() override { delete this; }

 private:
  std::optional<CallDeadline> deadline_;
  std::unique_ptr<ShardDownload> download_;
  v1::DownloadChunk message_;
};

}  // namespace

grpc::ServerUnaryReactor* CheckpointService::Begin(
    grpc::CallbackServerContext* context, const v1::BeginRequest* request,
    v1::BeginResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  const std::map<std::string, std::string> metadata(request->metadata().begin(),
                                                    request->metadata().end());
  absl::StatusOr<std::string> id =
      store_->Begin(fence, request->step(), request->shards(), metadata);
  if (!id.ok()) return ReplyNow(context, id.status());
  response->set_checkpoint_id(*std::move(id));
  response->set_chunk_bytes(
      static_cast<int32_t>(store_->limits().max_chunk_bytes));
  return ReplyNow(context, absl::OkStatus());
}

grpc::ServerReadReactor<v1::UploadRequest>* CheckpointService::Upload(
    grpc::CallbackServerContext* context, v1::UploadResponse* response) {
  static_cast<void>(response);
  return new UploadCall(options_, store_, gate_, context);
}

grpc::ServerUnaryReactor* CheckpointService::Commit(
    grpc::CallbackServerContext* context, const v1::CommitRequest* request,
    v1::CommitResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  const absl::StatusOr<CheckpointRecord> record =
      store_->Commit(fence, request->checkpoint_id());
  if (record.ok()) *response->mutable_checkpoint() = ToProto(*record);
  return ReplyNow(context, record.status());
}

grpc::ServerUnaryReactor* CheckpointService::List(
    grpc::CallbackServerContext* context, const v1::ListRequest* request,
    v1::ListResponse* response) {
  for (const CheckpointRecord& record : store_->List(request->job())) {
    *response->add_checkpoints() = ToProto(record);
  }
  return ReplyNow(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::DownloadChunk>* CheckpointService::Download(
    grpc::CallbackServerContext* context, const v1::DownloadRequest* request) {
  return new DownloadCall(
      options_, context,
      store_->StartDownload(request->job(), request->checkpoint_id(),
                            request->shard()));
}

grpc::ServerUnaryReactor* CheckpointService::Delete(
    grpc::CallbackServerContext* context, const v1::DeleteRequest* request,
    v1::DeleteResponse* response) {
  static_cast<void>(response);
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = gate_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  if (!request->job().empty() && request->job() != fence.job) {
    return ReplyNow(context, absl::InvalidArgumentError(absl::StrCat(
                                 "a member of job \"", fence.job,
                                 "\" cannot delete checkpoints of job \"",
                                 request->job(), "\"")));
  }
  return ReplyNow(context, store_->Delete(fence.job, request->checkpoint_id()));
}

}  // namespace coxswain::server
