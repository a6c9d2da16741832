#include "server/rpc/checkpoint_operations.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/grpc_status.h"
#include "base/status_macros.h"
#include "server/rpc/call_deadline.h"

namespace coxswain::server {
namespace {

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
      return End(absl::CancelledError("the client is gone"));
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

absl::Status AdmitWriter(const FenceGate& gate, const Fence& fence) {
  return IsOperator(fence) ? gate.AdmitOperator(fence)
                           : gate.Admit(fence).status();
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

grpc::ServerWriteReactor<v1::VerifyProgress>* StartVerify(
    const RpcOptions& options, CheckpointStore* store, DiskThreads* disk,
    grpc::CallbackServerContext* context, const v1::VerifyRequest& request) {
  return new VerifyCall(options, store, disk, context, request);
}

}  // namespace coxswain::server
