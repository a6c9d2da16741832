#include "server/rpc/checkpoint_upload.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/grpc_status.h"
#include "base/status_macros.h"
#include "proto/bulk/chunk_codec.h"
#include "proto/checkpoint.pb.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/checkpoint_operations.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

// gRPC runs the reactions one after the other, a disk thread runs Step in
// between, and gRPC owns the object until OnDone.
class UploadCall : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  UploadCall(const RpcOptions& options, CheckpointStore* store,
             const FenceGate* gate, DiskThreads* disk,
             grpc::CallbackServerContext* context)
      : options_(options),
        store_(store),
        gate_(gate),
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
    COXSWAIN_RETURN_IF_ERROR(AdmitWriter(*gate_, fence));
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
  DiskThreads* const disk_;
  grpc::CallbackServerContext* const context_;
  std::optional<CallDeadline> deadline_;
  grpc::ByteBuffer request_;
  std::unique_ptr<ShardUpload> upload_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartUpload(
    const RpcOptions& options, CheckpointStore* store, const FenceGate* gate,
    DiskThreads* disk, grpc::CallbackServerContext* context,
    grpc::ByteBuffer* response) {
  *response = bulk::Encode(v1::UploadResponse());
  return new UploadCall(options, store, gate, disk, context);
}

}  // namespace coxswain::server
