#include "server/rpc/checkpoint_service.h"

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "server/rpc/call.h"
#include "server/rpc/checkpoint_streams.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

// Refuses callers that must not write; else answers with what `work` returns,
// on a disk thread. The request, the response and the context live until then.
grpc::ServerUnaryReactor* ReplyToWriter(const FenceValidator& validator,
                                        const Fence& fence, DiskThreads* disk,
                                        grpc::CallbackServerContext* context,
                                        std::function<absl::Status()> work) {
  const absl::Status admitted = AdmitWriter(validator, fence);
  if (!admitted.ok()) return ReplyNow(context, admitted);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  disk->Run([reactor, work = std::move(work)] {
    reactor->Finish(ToGrpcStatus(work()));
  });
  return reactor;
}

v1::CheckpointInfo InfoOf(const CheckpointRecord& record) {
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

v1::ShowResponse ShowOf(const CheckpointRecord& record) {
  v1::ShowResponse response;
  *response.mutable_checkpoint() = InfoOf(record);
  for (const auto& [index, shard] : record.shards) {
    v1::ShardInfo* const info = response.add_shards();
    info->set_shard(index);
    info->set_file(shard.file);
    info->set_bytes(shard.bytes);
    info->set_crc32c(shard.crc32c);
  }
  return response;
}

}  // namespace

CheckpointService::CheckpointService(const RpcOptions& options,
                                     CheckpointStore* store,
                                     const FenceValidator* validator)
    : options_(options), store_(store), validator_(validator) {}

CheckpointService::~CheckpointService() = default;

grpc::ServerUnaryReactor* CheckpointService::Begin(
    grpc::CallbackServerContext* context, const v1::BeginRequest* request,
    v1::BeginResponse* response) {
  const Fence fence = FromProto(request->fence());
  const auto begin = [this, fence, request, response] {
    if (request->has_import() != IsOperator(fence)) {
      return absl::InvalidArgumentError("only an operator may set `imports`");
    }
    const std::map<std::string, std::string> metadata(
        request->metadata().begin(), request->metadata().end());
    absl::StatusOr<std::string> id =
        request->has_import()
            ? store_->BeginImport(
                  fence, request->step(), request->shards(), metadata,
                  absl::FromUnixMillis(request->import().created_unix_ms()))
            : store_->Begin(fence, request->step(), request->shards(),
                            metadata);
    if (!id.ok()) return id.status();
    response->set_checkpoint_id(*std::move(id));
    response->set_chunk_bytes(
        static_cast<int32_t>(store_->limits().max_chunk_bytes));
    return absl::OkStatus();
  };
  return ReplyToWriter(*validator_, fence, &disk_, context, begin);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* CheckpointService::Upload(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  return StartUpload(options_, store_, validator_, &disk_, context, response);
}

grpc::ServerUnaryReactor* CheckpointService::Commit(
    grpc::CallbackServerContext* context, const v1::CommitRequest* request,
    v1::CommitResponse* response) {
  const Fence fence = FromProto(request->fence());
  const auto commit = [this, fence, request, response] {
    RetentionRules rules;
    rules.keep_last = request->keep_last();
    rules.keep_every = request->keep_every();
    const absl::StatusOr<CheckpointRecord> record =
        store_->Commit(fence, request->checkpoint_id(), rules);
    if (record.ok()) *response->mutable_checkpoint() = InfoOf(*record);
    return record.status();
  };
  return ReplyToWriter(*validator_, fence, &disk_, context, commit);
}

grpc::ServerUnaryReactor* CheckpointService::List(
    grpc::CallbackServerContext* context, const v1::ListRequest* request,
    v1::ListResponse* response) {
  for (const CheckpointRecord& record : store_->List(request->job())) {
    *response->add_checkpoints() = InfoOf(record);
  }
  return ReplyNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* CheckpointService::Show(
    grpc::CallbackServerContext* context, const v1::ShowRequest* request,
    v1::ShowResponse* response) {
  const absl::StatusOr<CheckpointRecord> record =
      store_->Find(request->job(), request->checkpoint_id());
  if (record.ok()) *response = ShowOf(*record);
  return ReplyNow(context, record.status());
}

grpc::ServerWriteReactor<v1::VerifyProgress>* CheckpointService::Verify(
    grpc::CallbackServerContext* context, const v1::VerifyRequest* request) {
  return StartVerify(options_, store_, &disk_, context, *request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CheckpointService::Download(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return StartDownload(options_, store_, &disk_, context, request);
}

grpc::ServerUnaryReactor* CheckpointService::Delete(
    grpc::CallbackServerContext* context, const v1::DeleteRequest* request,
    v1::DeleteResponse* /*response*/) {
  const Fence fence = FromProto(request->fence());
  const auto remove = [this, fence, request] {
    if (!request->job().empty() && request->job() != fence.job) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a caller that writes to job \"", fence.job,
          "\" cannot delete checkpoints of job \"", request->job(), "\""));
    }
    return store_->Delete(fence.job, request->checkpoint_id());
  };
  return ReplyToWriter(*validator_, fence, &disk_, context, remove);
}

}  // namespace coxswain::server
