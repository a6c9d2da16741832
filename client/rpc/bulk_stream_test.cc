// Bulk streams against a service that has nothing but protobuf: what this end
// writes and reads without copies is what the protos define.
#include "client/rpc/bulk_stream.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/grpc_coordinator_stub.h"
#include "client/rpc/stub_factory.h"
#include "proto/checkpoint.grpc.pb.h"

namespace coxswain {
namespace {

constexpr size_t kChunk = 1 << 20;

// Keeps what is uploaded, and gives it back in chunks.
class PlainService final : public v1::Checkpoint::Service {
 public:
  grpc::Status Upload(grpc::ServerContext*,
                      grpc::ServerReader<v1::UploadRequest>* reader,
                      v1::UploadResponse*) override {
    MutexLock lock(&mutex_);
    v1::UploadRequest message;
    while (reader->Read(&message)) {
      if (message.has_header()) header_ = message.header();
      if (!message.has_chunk()) continue;
      const v1::Chunk& chunk = message.chunk();
      if (chunk.offset() != static_cast<int64_t>(bytes_.size()) ||
          chunk.crc32c() != Crc32c(chunk.data())) {
        return ToGrpcStatus(absl::DataLossError("a damaged chunk"));
      }
      bytes_ += chunk.data();
    }
    return grpc::Status::OK;
  }

  grpc::Status Download(
      grpc::ServerContext*, const v1::DownloadRequest* wanted,
      grpc::ServerWriter<v1::DownloadChunk>* writer) override {
    MutexLock lock(&mutex_);
    if (wanted->checkpoint_id() != header_.checkpoint_id()) {
      return ToGrpcStatus(absl::NotFoundError("another checkpoint"));
    }
    v1::DownloadChunk message;
    message.mutable_header()->set_bytes(static_cast<int64_t>(bytes_.size()));
    writer->Write(message);
    for (size_t at = 0; at < bytes_.size(); at += kChunk) {
      v1::Chunk* chunk = message.mutable_chunk();
      chunk->set_offset(static_cast<int64_t>(at));
      chunk->set_data(bytes_.substr(at, kChunk));
      chunk->set_crc32c(Crc32c(chunk->data()));
      writer->Write(message);
    }
    return grpc::Status::OK;
  }

  std::string id() {
    MutexLock lock(&mutex_);
    return header_.checkpoint_id();
  }
  std::string bytes() {
    MutexLock lock(&mutex_);
    return bytes_;
  }

 private:
  Mutex mutex_;
  v1::UploadHeader header_ ABSL_GUARDED_BY(mutex_);
  std::string bytes_ ABSL_GUARDED_BY(mutex_);
};

class BulkStreamTest : public testing::Test {
 protected:
  BulkStreamTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = MakeGrpcCoordinatorStub(absl::StrCat("127.0.0.1:", port));
    for (int i = 0; i < 2'500'000; ++i) data_ += static_cast<char>(i * 7);
  }

  // With an owner without copies, without one with.
  absl::Status Upload(const std::shared_ptr<const void>& owner,
                      uint32_t spoil = 0) {
    const auto stream = stub_->Upload(CallOptions());
    v1::UploadRequest header;
    header.mutable_header()->set_checkpoint_id("mine");
    bool open = stream->Write(header);
    for (size_t at = 0; open && at < data_.size(); at += kChunk) {
      const absl::string_view data =
          absl::string_view(data_).substr(at, kChunk);
      open = stream->WriteChunk(static_cast<int64_t>(at), data,
                                Crc32c(data) ^ spoil, owner);
    }
    return stream->Finish();
  }

  PlainService service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<CoordinatorStub> stub_;
  std::string data_;
};

TEST_F(BulkStreamTest, APlainServiceUnderstandsWhatIsLentToIt) {
  auto owner = std::make_shared<int>(0);
  EXPECT_THAT(Upload(owner), IsOk());
  EXPECT_EQ(service_.id(), "mine");
  EXPECT_TRUE(service_.bytes() == data_);
}

TEST_F(BulkStreamTest, APlainServiceUnderstandsCopies) {
  EXPECT_THAT(Upload(nullptr), IsOk());
  EXPECT_TRUE(service_.bytes() == data_);
}

TEST_F(BulkStreamTest, ARefusalComesThrough) {
  EXPECT_THAT(Upload(nullptr, /*spoil=*/1),
              StatusIs(absl::StatusCode::kDataLoss,
                       testing::HasSubstr("a damaged chunk")));
}

TEST_F(BulkStreamTest, WhatAPlainServiceSendsIsUnderstood) {
  ASSERT_THAT(Upload(nullptr), IsOk());
  v1::DownloadRequest request;
  request.set_checkpoint_id("mine");
  const auto stream = stub_->Download(request, CallOptions());
  v1::DownloadChunk message;
  std::vector<absl::string_view> data;
  std::string bytes;
  ASSERT_TRUE(stream->ReadPieces(&message, &data));
  EXPECT_EQ(message.header().bytes(), static_cast<int64_t>(data_.size()));
  while (stream->ReadPieces(&message, &data)) {
    EXPECT_EQ(message.chunk().offset(), static_cast<int64_t>(bytes.size()));
    uint32_t crc = 0;
    for (const absl::string_view piece : data) {
      crc = Crc32c(piece, crc);
      bytes.append(piece.data(), piece.size());
    }
    EXPECT_EQ(message.chunk().crc32c(), crc);
  }
  EXPECT_THAT(stream->Finish(), IsOk());
  EXPECT_TRUE(bytes == data_);
}

TEST_F(BulkStreamTest, ADownloadThatIsRefusedReturnsTheReason) {
  v1::DownloadRequest request;
  request.set_checkpoint_id("other");
  const auto stream = stub_->Download(request, CallOptions());
  v1::DownloadChunk message;
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_THAT(stream->Finish(),
              StatusIs(absl::StatusCode::kNotFound,
                       testing::HasSubstr("another checkpoint")));
}

TEST_F(BulkStreamTest, TheNextStreamGoesToAnotherCoordinatorOfAList) {
  const auto nobody = MakeGrpcCoordinatorStub("127.0.0.1:1");
  const auto upload_to = [&](CoordinatorStub& stub) {
    const auto stream = stub.Upload(CallOptions());
    v1::UploadRequest header;
    header.mutable_header()->set_checkpoint_id("mine");
    stream->Write(header);
    return stream->Finish();
  };
  const auto stub = MakeFailoverStub({nobody, stub_}, Clock::Real());
  EXPECT_THAT(upload_to(*stub),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_OK(upload_to(*stub));

  const auto other = MakeFailoverStub({nobody, stub_}, Clock::Real());
  v1::DownloadRequest request;
  request.set_checkpoint_id("mine");
  v1::DownloadChunk message;
  EXPECT_THAT(other->Download(request, CallOptions())->Finish(),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_TRUE(other->Download(request, CallOptions())->Read(&message));
}

// Nothing hangs, and nothing is leaked, whenever one lets go.
TEST_F(BulkStreamTest, StreamsMayBeLeftAtAnyPoint) {
  ASSERT_THAT(Upload(nullptr), IsOk());
  v1::DownloadRequest request;
  request.set_checkpoint_id("mine");
  v1::DownloadChunk message;
  stub_->Upload(CallOptions());
  stub_->Download(request, CallOptions());
  const auto stream = stub_->Download(request, CallOptions());
  EXPECT_TRUE(stream->Read(&message));
  EXPECT_TRUE(stream->Read(&message));
}

TEST_F(BulkStreamTest, ARaisedSignalEndsAStream) {
  CancelSignal cancel;
  CallOptions options;
  options.cancel = &cancel;
  const auto stream = stub_->Upload(options);
  cancel.Raise(absl::AbortedError("the generation has ended"));
  EXPECT_THAT(stream->Finish(), StatusIs(absl::StatusCode::kAborted,
                                         testing::HasSubstr("generation")));
}

}  // namespace
}  // namespace coxswain
