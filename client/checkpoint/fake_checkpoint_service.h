#ifndef COXSWAIN_CLIENT_CHECKPOINT_FAKE_CHECKPOINT_SERVICE_H_
#define COXSWAIN_CLIENT_CHECKPOINT_FAKE_CHECKPOINT_SERVICE_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/crc32c.h"
#include "base/mutex.h"
#include "client/rpc/fake_coordinator_stub.h"

namespace coxswain {

// The Checkpoint service in memory, behind a FakeCoordinatorStub. Checks what
// it is sent as the real one does. The hooks spoil things; set them before
// use. Thread-safe. Outlives the stub's users.
class FakeCheckpointService {
 public:
  static constexpr int kChunkBytes = 10;

  explicit FakeCheckpointService(FakeCoordinatorStub* stub) {
    stub->Answer<v1::BeginRequest, v1::BeginResponse>(
        "Checkpoint/Begin",
        [this](const v1::BeginRequest& request, const CallOptions& call) {
          MutexLock lock(&mutex_);
          begin_timeout = call.timeout;
          v1::BeginResponse response;
          response.set_checkpoint_id(absl::StrCat("step-", request.step()));
          response.set_chunk_bytes(kChunkBytes);
          v1::CheckpointInfo& info = infos_[response.checkpoint_id()];
          info.set_checkpoint_id(response.checkpoint_id());
          info.set_step(request.step());
          info.set_shards(request.shards());
          *info.mutable_metadata() = request.metadata();
          return response;
        });
    stub->Answer<v1::CommitRequest, v1::CommitResponse>(
        "Checkpoint/Commit",
        [this](const v1::CommitRequest& request,
               const CallOptions& call) -> absl::StatusOr<v1::CommitResponse> {
          if (!commit_error.ok()) return commit_error;
          MutexLock lock(&mutex_);
          commit_timeout = call.timeout;
          const std::string& id = request.checkpoint_id();
          committed = request;
          if (restarts > 0) {
            --restarts;
            shards_[id].erase(0);
          }
          v1::CommitResponse response;
          *response.mutable_checkpoint() = infos_[id];
          if (static_cast<int>(shards_[id].size()) != infos_[id].shards()) {
            return absl::FailedPreconditionError("shards are missing");
          }
          complete_.insert(complete_.begin(), id);
          return response;
        });
    stub->Answer<v1::ListRequest, v1::ListResponse>(
        "Checkpoint/List", [this](const v1::ListRequest&, const CallOptions&) {
          MutexLock lock(&mutex_);
          v1::ListResponse response;
          for (const std::string& id : complete_) {
            *response.add_checkpoints() = infos_[id];
          }
          return response;
        });
    stub->Answer<v1::ShowRequest, v1::ShowResponse>(
        "Checkpoint/Show",
        [this](const v1::ShowRequest& request, const CallOptions&) {
          MutexLock lock(&mutex_);
          v1::ShowResponse response;
          *response.mutable_checkpoint() = infos_[request.checkpoint_id()];
          for (const auto& [shard, bytes] : shards_[request.checkpoint_id()]) {
            v1::ShardInfo* const info = response.add_shards();
            info->set_shard(shard);
            info->set_bytes(static_cast<int64_t>(bytes.size()));
            info->set_crc32c(Crc32c(bytes));
          }
          return response;
        });
    stub->Answer<v1::DeleteRequest, v1::DeleteResponse>(
        "Checkpoint/Delete",
        [this](const v1::DeleteRequest& request, const CallOptions&) {
          MutexLock lock(&mutex_);
          deleted.push_back(request.checkpoint_id());
          return v1::DeleteResponse();
        });
    stub->on_upload = [this]() { return std::make_unique<FakeUpload>(this); };
    stub->on_download = [this](const v1::DownloadRequest& request) {
      absl::Status end;
      auto chunks = Chunks(request);
      if (download_error != nullptr) end = download_error(&chunks);
      return std::make_unique<FakeDownload>(std::move(chunks), end);
    };
  }

  // Spoil what is downloaded, and what is uploaded and committed.
  std::function<void(std::vector<v1::DownloadChunk>*)> spoil_download;
  std::function<absl::Status(int shard)> upload_error;
  // Cuts a download short, and returns its end.
  std::function<absl::Status(std::vector<v1::DownloadChunk>*)> download_error;
  // An old one sends whole shards always.
  bool knows_ranges = true;
  absl::Status commit_error;
  // So many times it is started again before a commit, and lacks shard 0.
  int restarts = 0;
  // Of the last ones; read when all is quiet.
  v1::CommitRequest committed;
  absl::Duration begin_timeout, commit_timeout;
  std::vector<std::string> deleted;

 private:
  class FakeUpload : public UploadStream {
   public:
    explicit FakeUpload(FakeCheckpointService* service) : service_(service) {}
    bool Write(const v1::UploadRequest& request) override {
      if (request.has_header()) {
        header_ = request.header();
        return true;
      }
      const v1::Chunk& chunk = request.chunk();
      intact_ = intact_ && chunk.data().size() <= kChunkBytes &&
                chunk.offset() == static_cast<int64_t>(bytes_.size()) &&
                chunk.crc32c() == Crc32c(chunk.data());
      bytes_ += chunk.data();
      return intact_;
    }
    absl::Status Finish() override {
      if (service_->upload_error != nullptr) {
        absl::Status error = service_->upload_error(header_.shard());
        if (!error.ok()) return error;
      }
      if (!intact_ || header_.bytes() != static_cast<int64_t>(bytes_.size()) ||
          header_.crc32c() != Crc32c(bytes_)) {
        return absl::DataLossError("damaged on the way up");
      }
      MutexLock lock(&service_->mutex_);
      service_->shards_[header_.checkpoint_id()][header_.shard()] = bytes_;
      return absl::OkStatus();
    }

   private:
    FakeCheckpointService* const service_;
    v1::UploadHeader header_;
    std::string bytes_;
    bool intact_ = true;
  };

  class FakeDownload : public DownloadStream {
   public:
    FakeDownload(std::vector<v1::DownloadChunk> chunks, absl::Status end)
        : chunks_(std::move(chunks)), end_(std::move(end)) {}
    bool Read(v1::DownloadChunk* chunk) override {
      if (next_ == chunks_.size()) return false;
      *chunk = chunks_[next_++];
      return true;
    }
    absl::Status Finish() override { return end_; }

   private:
    const std::vector<v1::DownloadChunk> chunks_;
    const absl::Status end_;
    size_t next_ = 0;
  };

  std::vector<v1::DownloadChunk> Chunks(const v1::DownloadRequest& request) {
    MutexLock lock(&mutex_);
    const std::string& bytes =
        shards_[request.checkpoint_id()][request.shard()];
    std::vector<v1::DownloadChunk> chunks(1);
    chunks[0].mutable_header()->set_bytes(static_cast<int64_t>(bytes.size()));
    chunks[0].mutable_header()->set_crc32c(Crc32c(bytes));
    const auto add = [&](size_t begin, size_t end) {
      for (size_t offset = begin; offset < end; offset += kChunkBytes) {
        v1::Chunk* chunk = chunks.emplace_back().mutable_chunk();
        chunk->set_offset(static_cast<int64_t>(offset));
        chunk->set_data(
            bytes.substr(offset, std::min<size_t>(kChunkBytes, end - offset)));
        chunk->set_crc32c(Crc32c(chunk->data()));
      }
    };
    if (knows_ranges && request.ranges_size() > 0) {
      chunks[0].mutable_header()->set_ranges(true);
      for (const v1::ByteRange& range : request.ranges()) {
        add(static_cast<size_t>(range.offset()),
            static_cast<size_t>(range.offset() + range.bytes()));
      }
    } else {
      add(0, bytes.size());
    }
    if (spoil_download != nullptr) spoil_download(&chunks);
    return chunks;
  }

  Mutex mutex_;
  std::map<std::string, v1::CheckpointInfo> infos_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::map<int, std::string>> shards_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> complete_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_FAKE_CHECKPOINT_SERVICE_H_
