// Uploads and downloads as a peer sees them that has nothing but protobuf: what
// the zero-copy streams send is what the protos define. And what happens to one
// that sends what it should not.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "base/grpc_status.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/checkpoint_service.h"
#include "server/storage/memory_file_system.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr size_t kChunk = 1000;
constexpr size_t kMaxUploads = 3;

CheckpointLimits MakeLimits() {
  CheckpointLimits limits;
  limits.max_chunk_bytes = kChunk;
  limits.max_open_uploads = kMaxUploads;
  return limits;
}

class AcceptingValidator : public FenceValidator {
 public:
  absl::StatusOr<Caller> Admit(const Fence&) const override {
    return Caller{{"node", 0}, 0, 1};
  }
  absl::Status AdmitOperator(const Fence&) const override {
    return absl::OkStatus();
  }
};

// Every call of a test ends within this, whatever happens.
struct Context : grpc::ClientContext {
  Context() {
    set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  }
};

using Messages = std::vector<v1::UploadRequest>;

class CheckpointStreamsTest : public testing::Test {
 protected:
  CheckpointStreamsTest()
      : store_(*CheckpointStore::Open(&files_, "/checkpoints", MakeLimits(),
                                      &clock_, RandomSource::System())),
        service_(RpcOptions(), store_.get(), &validator_) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Checkpoint::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
    for (int i = 0; i < 2500; ++i) data_ += static_cast<char>(i * 7);
    id_ = Begin(1);
  }
  ~CheckpointStreamsTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  static void Fill(v1::Fence* fence) {
    fence->set_job("job");
    fence->set_generation(1);
  }

  std::string Begin(int64_t step) {
    Context context;
    v1::BeginRequest request;
    v1::BeginResponse response;
    Fill(request.mutable_fence());
    request.set_step(step);
    request.set_shards(1);
    EXPECT_TRUE(stub_->Begin(&context, request, &response).ok());
    return response.checkpoint_id();
  }

  // A header, and three chunks.
  Messages Honest() const {
    Messages messages(1);
    v1::UploadHeader* header = messages[0].mutable_header();
    Fill(header->mutable_fence());
    header->set_checkpoint_id(id_);
    header->set_bytes(static_cast<int64_t>(data_.size()));
    header->set_crc32c(Crc32c(data_));
    for (size_t at = 0; at < data_.size(); at += kChunk) {
      messages.push_back(ChunkAt(at, data_.substr(at, kChunk)));
    }
    return messages;
  }
  static v1::UploadRequest ChunkAt(size_t offset, const std::string& data) {
    v1::UploadRequest message;
    message.mutable_chunk()->set_offset(static_cast<int64_t>(offset));
    message.mutable_chunk()->set_data(data);
    message.mutable_chunk()->set_crc32c(Crc32c(data));
    return message;
  }

  absl::Status Upload(const Messages& messages) {
    Context context;
    v1::UploadResponse response;
    const auto writer = stub_->Upload(&context, &response);
    bool open = true;
    for (size_t i = 0; open && i < messages.size(); ++i) {
      open = writer->Write(messages[i]);
    }
    writer->WritesDone();
    return FromGrpcStatus(writer->Finish());
  }

  absl::Status Commit() {
    Context context;
    v1::CommitRequest request;
    v1::CommitResponse response;
    Fill(request.mutable_fence());
    request.set_checkpoint_id(id_);
    return FromGrpcStatus(stub_->Commit(&context, request, &response));
  }

  absl::StatusOr<std::string> Download() {
    Context context;
    v1::DownloadRequest request;
    request.set_job("job");
    request.set_checkpoint_id(id_);
    const auto reader = stub_->Download(&context, request);
    v1::DownloadChunk message;
    std::string bytes;
    while (reader->Read(&message)) {
      if (message.has_header()) {
        EXPECT_FALSE(message.header().ranges());
        continue;
      }
      EXPECT_EQ(message.chunk().offset(), static_cast<int64_t>(bytes.size()));
      EXPECT_EQ(message.chunk().crc32c(), Crc32c(message.chunk().data()));
      bytes += message.chunk().data();
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return FromGrpcStatus(status);
    return bytes;
  }

  // What lies in the folder of the open checkpoint.
  std::vector<std::string> ShardFiles() {
    std::vector<std::string> shards;
    for (const std::string& term : Listed("/checkpoints")) {
      if (!absl::StartsWith(term, "@term-")) continue;
      const std::string folder = absl::StrCat("/checkpoints/", term);
      for (const std::string& entry : Listed(folder)) {
        if (!absl::EndsWith(entry, ".uploads")) continue;
        for (std::string& shard : Listed(absl::StrCat(folder, "/", entry))) {
          shards.push_back(std::move(shard));
        }
      }
    }
    return shards;
  }
  std::vector<std::string> Listed(const std::string& folder) {
    auto entries = files_.List(folder);
    EXPECT_THAT(entries, IsOk());
    return entries.ok() ? *std::move(entries) : std::vector<std::string>();
  }

  // Waits until so many lie there.
  bool AwaitFiles(size_t count) {
    const absl::Time deadline = Clock::Real()->Now() + absl::Minutes(1);
    while (ShardFiles().size() != count) {
      if (Clock::Real()->Now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // The attack is refused, leaves nothing, and harms no other peer.
  void ExpectRefused(const Messages& messages, absl::StatusCode code,
                     const std::string& why) {
    EXPECT_THAT(Upload(messages), StatusIs(code, HasSubstr(why)));
    EXPECT_THAT(ShardFiles(), IsEmpty());
    EXPECT_THAT(Commit(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("missing")));
    EXPECT_THAT(Upload(Honest()), IsOk());
    EXPECT_THAT(ShardFiles(), SizeIs(1));
    EXPECT_THAT(Commit(), IsOk());
    const auto back = Download();
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(*back, data_);
  }

  FakeClock clock_;
  MemoryFileSystem files_;
  AcceptingValidator validator_;
  std::unique_ptr<CheckpointStore> store_;
  CheckpointService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Checkpoint::Stub> stub_;
  std::string data_;
  std::string id_;
};

TEST_F(CheckpointStreamsTest, APlainPeerGetsBackWhatItSent) {
  ASSERT_THAT(Upload(Honest()), IsOk());
  ASSERT_THAT(Commit(), IsOk());
  const auto back = Download();
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(*back, data_);
}

TEST_F(CheckpointStreamsTest, RangesComeAloneAndTheHeaderSaysSo) {
  ASSERT_THAT(Upload(Honest()), IsOk());
  ASSERT_THAT(Commit(), IsOk());
  v1::DownloadRequest request;
  request.set_job("job");
  request.set_checkpoint_id(id_);
  const auto add = [&request](int64_t offset, int64_t bytes) {
    v1::ByteRange* const range = request.add_ranges();
    range->set_offset(offset);
    range->set_bytes(bytes);
  };
  add(1, 2);
  add(5, 4);
  {
    Context context;
    const auto reader = stub_->Download(&context, request);
    v1::DownloadChunk message;
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_TRUE(message.header().ranges());
    EXPECT_EQ(message.header().bytes(), static_cast<int64_t>(data_.size()));
    std::string bytes;
    while (reader->Read(&message)) bytes += message.chunk().data();
    EXPECT_THAT(FromGrpcStatus(reader->Finish()), IsOk());
    EXPECT_EQ(bytes, data_.substr(1, 2) + data_.substr(5, 4));
  }
  add(2, 1);
  Context context;
  const auto reader = stub_->Download(&context, request);
  EXPECT_THAT(FromGrpcStatus(reader->Finish()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("begins before byte 9")));
}

TEST_F(CheckpointStreamsTest, AnEmptyShardIsOne) {
  data_.clear();
  ASSERT_THAT(Upload(Honest()), IsOk());
  ASSERT_THAT(Commit(), IsOk());
  const auto back = Download();
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(*back, "");
}

TEST_F(CheckpointStreamsTest, ATruncatedChunk) {
  Messages messages = Honest();
  messages[2].mutable_chunk()->mutable_data()->resize(kChunk / 2);
  ExpectRefused(messages, absl::StatusCode::kDataLoss, "CRC-32C");
}

// Its own checksum is right, the chunk after it does not follow.
TEST_F(CheckpointStreamsTest, ATruncatedChunkOfItsOwnLength) {
  Messages messages = Honest();
  messages[2] = ChunkAt(kChunk, data_.substr(kChunk, kChunk / 2));
  ExpectRefused(messages, absl::StatusCode::kDataLoss, "was next");
}

TEST_F(CheckpointStreamsTest, ATruncatedStream) {
  Messages messages = Honest();
  messages.pop_back();
  ExpectRefused(messages, absl::StatusCode::kDataLoss, "only 2000");
}

TEST_F(CheckpointStreamsTest, EveryFlippedBit) {
  const Messages honest = Honest();
  for (const size_t at : {size_t{0}, kChunk / 2, kChunk - 1}) {
    for (int bit = 0; bit < 8; ++bit) {
      Messages messages = honest;
      (*messages[2].mutable_chunk()->mutable_data())[at] ^= 1 << bit;
      EXPECT_THAT(Upload(messages),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("CRC-32C")));
      EXPECT_THAT(ShardFiles(), IsEmpty());
    }
  }
}

// The chunks are right one by one, the whole is another.
TEST_F(CheckpointStreamsTest, OtherBytesThanInTheHeader) {
  Messages messages = Honest();
  messages[2] = ChunkAt(kChunk, std::string(kChunk, 'x'));
  ExpectRefused(messages, absl::StatusCode::kDataLoss, "CRC-32C");
}

TEST_F(CheckpointStreamsTest, ReorderedChunks) {
  Messages messages = Honest();
  std::swap(messages[1], messages[2]);
  ExpectRefused(messages, absl::StatusCode::kDataLoss, "was next");
}

TEST_F(CheckpointStreamsTest, ADuplicatedChunk) {
  Messages messages = Honest();
  messages.insert(messages.begin() + 2, messages[1]);
  ExpectRefused(messages, absl::StatusCode::kDataLoss, "was next");
}

TEST_F(CheckpointStreamsTest, AChunkThatIsTooLarge) {
  Messages messages = Honest();
  messages[1] = ChunkAt(0, data_.substr(0, kChunk + 1));
  ExpectRefused(messages, absl::StatusCode::kResourceExhausted,
                "max_chunk_bytes");
}

TEST_F(CheckpointStreamsTest, TooManyChunks) {
  Messages messages = Honest();
  messages.push_back(ChunkAt(data_.size(), "more"));
  ExpectRefused(messages, absl::StatusCode::kDataLoss, "more bytes");
}

TEST_F(CheckpointStreamsTest, AShardThatThereIsNot) {
  for (const int shard : {-1, 1}) {
    Messages messages = Honest();
    messages[0].mutable_header()->set_shard(shard);
    EXPECT_THAT(Upload(messages), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("shards 0 to 0")));
  }
}

TEST_F(CheckpointStreamsTest, ASizeThatMakesNoSense) {
  for (const int64_t bytes : {int64_t{-1}, int64_t{1} << 62}) {
    Messages messages = Honest();
    messages[0].mutable_header()->set_bytes(bytes);
    EXPECT_THAT(Upload(messages), StatusIs(absl::StatusCode::kResourceExhausted,
                                           HasSubstr("max_shard_bytes")));
  }
}

TEST_F(CheckpointStreamsTest, TheHeaderTwice) {
  Messages messages = Honest();
  messages.insert(messages.begin() + 2, messages[0]);
  ExpectRefused(messages, absl::StatusCode::kInvalidArgument, "one header");
}

TEST_F(CheckpointStreamsTest, NoHeader) {
  Messages messages = Honest();
  messages.erase(messages.begin());
  ExpectRefused(messages, absl::StatusCode::kInvalidArgument,
                "begins with its header");
}

TEST_F(CheckpointStreamsTest, NothingAtAll) {
  ExpectRefused({}, absl::StatusCode::kInvalidArgument,
                "begins with its header");
}

TEST_F(CheckpointStreamsTest, AnEmptyMessage) {
  Messages messages = Honest();
  messages[1].Clear();
  ExpectRefused(messages, absl::StatusCode::kInvalidArgument, "neither");
}

TEST_F(CheckpointStreamsTest, AfterTheCommit) {
  ASSERT_THAT(Upload(Honest()), IsOk());
  ASSERT_THAT(Commit(), IsOk());
  EXPECT_THAT(Upload(Honest()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(id_)));
  const auto back = Download();
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(*back, data_);
}

// Each holds a file and up to two chunks of memory.
TEST_F(CheckpointStreamsTest, MoreUploadsAtOnceThanThereMayBe) {
  Context contexts[kMaxUploads + 1];
  v1::UploadResponse responses[kMaxUploads + 1];
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>>> writers;
  const Messages honest = Honest();
  for (size_t i = 0; i < kMaxUploads; ++i) {
    writers.push_back(stub_->Upload(&contexts[i], &responses[i]));
    ASSERT_TRUE(writers[i]->Write(honest[0]));
  }
  // It is known of them once their files are there.
  ASSERT_TRUE(AwaitFiles(kMaxUploads));
  EXPECT_THAT(Upload(honest), StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("max_open_uploads")));
  for (auto& writer : writers) {
    for (size_t i = 1; i < honest.size(); ++i) writer->Write(honest[i]);
    writer->WritesDone();
    EXPECT_TRUE(writer->Finish().ok());
  }
  EXPECT_THAT(Upload(honest), IsOk());
  EXPECT_THAT(ShardFiles(), SizeIs(1));
}

TEST_F(CheckpointStreamsTest, APeerThatCancelsLeavesNothing) {
  Context context;
  v1::UploadResponse response;
  const auto writer = stub_->Upload(&context, &response);
  const Messages honest = Honest();
  ASSERT_TRUE(writer->Write(honest[0]));
  ASSERT_TRUE(writer->Write(honest[1]));
  ASSERT_TRUE(AwaitFiles(1));
  context.TryCancel();
  EXPECT_FALSE(writer->Finish().ok());
  ASSERT_TRUE(AwaitFiles(0));
  ExpectRefused({}, absl::StatusCode::kInvalidArgument, "header");
}

}  // namespace
}  // namespace coxswain::server
