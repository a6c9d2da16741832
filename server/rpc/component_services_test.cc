// The Store, Group and Checkpoint services over a real gRPC server on loopback,
// with a validator that knows the callers by their incarnation.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "base/grpc_status.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc/checkpoint_service.h"
#include "server/rpc/group_service.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/store_service.h"
#include "server/state/group_commit.h"
#include "server/state/memory_state_store.h"
#include "server/storage/memory_file_system.h"
#include "server/store/store_test_calls.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

constexpr int kWorld = 16;
constexpr size_t kMaxWatches = 2;

StoreLimits MakeStoreLimits() {
  StoreLimits limits;
  limits.max_watches = kMaxWatches;
  return limits;
}

// Short: a silent peer is not waited for in a test. Not so short that a
// slow machine could not send a header in time.
RpcOptions MakeRpcOptions() {
  RpcOptions options;
  options.first_message_timeout = absl::Seconds(2);
  options.transfer_timeout = absl::Seconds(30);
  return options;
}

// Rank r has incarnation r + 1; generation 1 is the present.
class FakeFenceValidator : public FenceValidator {
 public:
  absl::StatusOr<Caller> Admit(const Fence& fence) const override {
    if (fence.generation != Generation(1)) {
      return absl::FailedPreconditionError("stale generation");
    }
    const int rank = static_cast<int>(fence.incarnation.value()) - 1;
    return Caller{{"node", rank}, rank, kWorld};
  }
  absl::Status AdmitOperator(const Fence&) const override {
    return absl::OkStatus();
  }
};

class ComponentServicesTest : public testing::Test {
 protected:
  ComponentServicesTest()
      : store_(MakeStoreLimits(), &clock_, &writer_),
        groups_(GroupLimits(), &clock_, &writer_),
        checkpoints_(*CheckpointStore::Open(&files_, "/checkpoints",
                                            CheckpointLimits(), &clock_,
                                            RandomSource::System())),
        store_service_(&store_, &validator_),
        group_service_(&groups_, &validator_),
        checkpoint_service_(MakeRpcOptions(), checkpoints_.get(), &validator_) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&store_service_);
    builder.RegisterService(&group_service_);
    builder.RegisterService(&checkpoint_service_);
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", port),
                                   grpc::InsecureChannelCredentials());
    store_stub_ = v1::Store::NewStub(channel_);
    group_stub_ = v1::Group::NewStub(channel_);
    checkpoint_stub_ = v1::Checkpoint::NewStub(channel_);
  }
  ~ComponentServicesTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  // Every call of a test ends within this, whatever happens.
  struct Context : grpc::ClientContext {
    Context() {
      set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    }
  };

  void Fill(int rank, v1::Fence* fence) {
    fence->set_job("job");
    fence->set_generation(1);
    fence->set_incarnation(rank + 1);
    fence->set_request_id(++next_request_);
  }
  absl::Status Set(int rank, const std::string& key, const std::string& value) {
    Context context;
    v1::SetRequest request;
    v1::SetResponse response;
    Fill(rank, request.mutable_fence());
    request.set_key(key);
    request.set_value(value);
    return FromGrpcStatus(store_stub_->Set(&context, request, &response));
  }
  absl::StatusOr<std::string> Get(int rank, const std::string& key,
                                  int64_t timeout_ms) {
    Context context;
    v1::GetRequest request;
    v1::GetResponse response;
    Fill(rank, request.mutable_fence());
    request.set_key(key);
    request.set_timeout_ms(timeout_ms);
    const grpc::Status status = store_stub_->Get(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response.value();
  }
  absl::StatusOr<std::string> BeginCheckpoint(int shards) {
    Context context;
    v1::BeginRequest request;
    v1::BeginResponse response;
    Fill(0, request.mutable_fence());
    request.set_step(5);
    request.set_shards(shards);
    const grpc::Status status =
        checkpoint_stub_->Begin(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    EXPECT_EQ(response.chunk_bytes(), 1 << 20);
    return response.checkpoint_id();
  }
  // Sends `data` in chunks; the checksum of chunk `bad_chunk` is wrong.
  absl::Status Upload(const std::string& id, int shard, const std::string& data,
                      int bad_chunk = -1) {
    constexpr size_t kChunk = 1 << 20;
    Context context;
    v1::UploadResponse response;
    const auto writer = checkpoint_stub_->Upload(&context, &response);
    v1::UploadRequest message;
    Fill(shard, message.mutable_header()->mutable_fence());
    message.mutable_header()->set_checkpoint_id(id);
    message.mutable_header()->set_shard(shard);
    message.mutable_header()->set_bytes(static_cast<int64_t>(data.size()));
    message.mutable_header()->set_crc32c(Crc32c(data));
    bool open = writer->Write(message);
    for (size_t i = 0; open && i * kChunk < data.size(); ++i) {
      const std::string chunk = data.substr(i * kChunk, kChunk);
      message.mutable_chunk()->set_offset(static_cast<int64_t>(i * kChunk));
      message.mutable_chunk()->set_data(chunk);
      message.mutable_chunk()->set_crc32c(
          Crc32c(chunk) + (static_cast<int>(i) == bad_chunk ? 1 : 0));
      open = writer->Write(message);
    }
    writer->WritesDone();
    return FromGrpcStatus(writer->Finish());
  }
  absl::StatusOr<v1::CheckpointInfo> Commit(const std::string& id) {
    Context context;
    v1::CommitRequest request;
    v1::CommitResponse response;
    Fill(0, request.mutable_fence());
    request.set_checkpoint_id(id);
    const grpc::Status status =
        checkpoint_stub_->Commit(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response.checkpoint();
  }
  absl::StatusOr<std::string> Download(const std::string& id, int shard) {
    Context context;
    v1::DownloadRequest request;
    request.set_job("job");
    request.set_checkpoint_id(id);
    request.set_shard(shard);
    const auto reader = checkpoint_stub_->Download(&context, request);
    v1::DownloadChunk message;
    std::string data;
    uint32_t announced = 0;
    while (reader->Read(&message)) {
      if (message.has_header()) announced = message.header().crc32c();
      if (!message.has_chunk()) continue;
      EXPECT_EQ(message.chunk().crc32c(), Crc32c(message.chunk().data()));
      data += message.chunk().data();
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return FromGrpcStatus(status);
    EXPECT_EQ(announced, Crc32c(data));
    return data;
  }

  FakeClock clock_;
  FakeFenceValidator validator_;
  MemoryFileSystem files_;
  MemoryStateStore state_;
  GroupCommit writer_{&state_};
  KeyValueStore store_;
  Groups groups_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  StoreService store_service_;
  GroupService group_service_;
  CheckpointService checkpoint_service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Store::Stub> store_stub_;
  std::unique_ptr<v1::Group::Stub> group_stub_;
  std::unique_ptr<v1::Checkpoint::Stub> checkpoint_stub_;
  std::atomic<uint64_t> next_request_{0};
};

TEST_F(ComponentServicesTest, SixteenClientsShareTheStore) {
  constexpr int kAdds = 20;
  std::atomic<int> winners{0};
  std::vector<std::thread> clients;
  for (int rank = 0; rank < kWorld; ++rank) {
    clients.emplace_back([&, rank] {
      for (int i = 0; i < kAdds; ++i) {
        Context context;
        v1::AddRequest request;
        v1::AddResponse response;
        Fill(rank, request.mutable_fence());
        request.set_key("n");
        request.set_amount(1);
        EXPECT_TRUE(store_stub_->Add(&context, request, &response).ok());
      }
      Context context;
      v1::CompareSetRequest request;
      v1::CompareSetResponse response;
      Fill(rank, request.mutable_fence());
      request.set_key("leader");
      request.set_desired(absl::StrCat("rank ", rank));
      EXPECT_TRUE(store_stub_->CompareSet(&context, request, &response).ok());
      if (response.swapped()) ++winners;
      // The last rank's counter completes the key that all others wait for.
      if (rank == 0) {
        EXPECT_OK(Set(rank, "go", "now"));
      } else {
        EXPECT_EQ(Get(rank, "go", 60000).value_or("missing"), "now");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(Get(0, "n", 0).value_or("missing"), absl::StrCat(kWorld * kAdds));
  EXPECT_EQ(winners, 1);
}

TEST_F(ComponentServicesTest, AStaleFenceIsRefused) {
  Context context;
  v1::GetRequest request;
  v1::GetResponse response;
  request.mutable_fence()->set_generation(9);
  request.set_key("k");
  EXPECT_THAT(
      FromGrpcStatus(store_stub_->Get(&context, request, &response)),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("stale")));
}

TEST_F(ComponentServicesTest, AClientThatCancelsWithdrawsItsGet) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(50));
  v1::GetRequest request;
  v1::GetResponse response;
  Fill(0, request.mutable_fence());
  request.set_key("never");
  request.set_timeout_ms(600000);
  EXPECT_EQ(store_stub_->Get(&context, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(Get(0, "never", 0),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("never")));
}

TEST_F(ComponentServicesTest, AWatchStreamsChangesUntilTheGenerationEnds) {
  ASSERT_OK(Set(0, "k", "one"));
  Context context;
  v1::WatchRequest request;
  Fill(1, request.mutable_fence());
  request.set_key("k");
  const auto reader = store_stub_->Watch(&context, request);
  v1::WatchEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.value(), "one");
  ASSERT_OK(Set(0, "k", "two"));
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.value(), "two");
  ASSERT_OK(DeleteKey(
      &store_, {"", Term(), "job", Generation(1), Incarnation(1), 99}, "k"));
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.deleted());
  store_.OnGenerationEnded("job", Generation(1), absl::AbortedError("over"));
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(ComponentServicesTest, ACancelledWatchFreesItsPlace) {
  ASSERT_OK(Set(0, "k", "value"));
  v1::WatchRequest request;
  Fill(1, request.mutable_fence());
  request.set_key("k");
  v1::WatchEvent event;
  std::vector<std::unique_ptr<Context>> contexts;
  for (size_t i = 0; i < kMaxWatches; ++i) {
    contexts.push_back(std::make_unique<Context>());
    const auto reader = store_stub_->Watch(contexts.back().get(), request);
    ASSERT_TRUE(reader->Read(&event));
    if (i + 1 < kMaxWatches) {
      contexts.back()->TryCancel();
      EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
      continue;
    }
    // The server learns of a cancellation a little later: try until it has.
    grpc::Status status = grpc::Status::CANCELLED;
    const auto deadline =
        std::chrono::system_clock::now() + std::chrono::seconds(30);
    int accepted = 0;
    while (accepted < 5 && std::chrono::system_clock::now() < deadline) {
      Context context;
      const auto again = store_stub_->Watch(&context, request);
      if (again->Read(&event)) ++accepted;
      context.TryCancel();
      status = again->Finish();
    }
    EXPECT_EQ(accepted, 5);
    contexts.back()->TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

TEST_F(ComponentServicesTest, BarrierOpensForAllAndNamesTheMissing) {
  const auto barrier = [&](int rank, const std::string& tag) {
    Context context;
    v1::BarrierRequest request;
    v1::BarrierResponse response;
    Fill(rank, request.mutable_fence());
    request.set_tag(tag);
    request.set_timeout_ms(tag == "all" ? 60000 : 0);
    return FromGrpcStatus(group_stub_->Barrier(&context, request, &response));
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] { EXPECT_OK(barrier(rank, "all")); });
  }
  for (std::thread& rank : ranks) rank.join();

  std::atomic<bool> done{false};
  std::thread ticker([&] {
    while (!done) {
      groups_.Tick(clock_.Now());
      std::this_thread::yield();
    }
  });
  const absl::Status alone = barrier(3, "alone");
  done = true;
  ticker.join();
  EXPECT_THAT(alone, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              HasSubstr("15 of 16 ranks")));
  const v1::ErrorDetail detail = DetailOf(alone);
  EXPECT_EQ(detail.missing_members().expected(), kWorld);
  EXPECT_EQ(detail.missing_members().missing_ranks_size(), kWorld - 1);
}

TEST_F(ComponentServicesTest, RanksAreNotListedWhereTheyAreARange) {
  const auto create = [this](v1::CreateGroupRequest request,
                             const std::string& name) {
    Context context;
    v1::CreateGroupResponse response;
    Fill(0, request.mutable_fence());
    request.set_name(name);
    EXPECT_TRUE(group_stub_->CreateGroup(&context, request, &response).ok());
    return response.group();
  };
  v1::CreateGroupRequest request;
  request.set_all_ranks(true);
  const v1::GroupInfo all = create(request, "world");
  EXPECT_THAT(all.ranks(), testing::IsEmpty());
  EXPECT_EQ(all.range().first(), 0);
  EXPECT_EQ(all.range().stride(), 1);
  EXPECT_EQ(all.range().count(), kWorld);
  for (const std::vector<int>& ranks :
       {std::vector<int>{3, 0}, {0, 2, 5}, {0, 5, 10, 14}}) {
    request.Clear();
    request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    const v1::GroupInfo odd =
        create(request, absl::StrCat("odd-", ranks.size()));
    EXPECT_FALSE(odd.has_range());
    EXPECT_THAT(odd.ranks(), testing::ElementsAreArray(ranks));
  }
}

TEST_F(ComponentServicesTest, AMeshIsDeclaredInOneCall) {
  Context context;
  v1::CreateMeshRequest request;
  v1::CreateMeshResponse response;
  Fill(5, request.mutable_fence());
  request.set_name("mesh");
  for (const char* name : {"dp", "tp"}) {
    v1::MeshAxis* axis = request.add_axes();
    axis->set_name(name);
    axis->set_size(4);
  }
  ASSERT_TRUE(group_stub_->CreateMesh(&context, request, &response).ok());
  ASSERT_EQ(response.groups_size(), 2);
  EXPECT_EQ(response.groups(1).communicator_id(), "job/1/mesh/tp/1");
  EXPECT_EQ(response.groups(1).range().first(), 4);
  EXPECT_EQ(response.groups(1).range().stride(), 1);
  EXPECT_EQ(response.groups(1).range().count(), 4);
}

TEST_F(ComponentServicesTest, ShardsOfManyChunksSurviveTheRoundTrip) {
  std::string data((5 << 20) + 123, '\0');
  const CounterRandom random(1, 2);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<char>(random.Bits(i));
  }
  ASSERT_OK_AND_ASSIGN(const std::string id, BeginCheckpoint(2));
  std::thread other([&] { EXPECT_OK(Upload(id, 1, "small")); });
  EXPECT_OK(Upload(id, 0, data));
  other.join();
  EXPECT_THAT(Download(id, 0),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(id)));
  ASSERT_OK_AND_ASSIGN(const v1::CheckpointInfo info, Commit(id));
  EXPECT_EQ(info.bytes(), static_cast<int64_t>(data.size()) + 5);
  EXPECT_OK(Commit(id));
  EXPECT_TRUE(Download(id, 0).value_or("unreadable") == data);
  EXPECT_EQ(Download(id, 1).value_or("unreadable"), "small");

  Context context;
  v1::ListRequest list;
  v1::ListResponse listed;
  list.set_job("job");
  ASSERT_TRUE(checkpoint_stub_->List(&context, list, &listed).ok());
  ASSERT_EQ(listed.checkpoints_size(), 1);
  EXPECT_EQ(listed.checkpoints(0).checkpoint_id(), id);

  Context delete_context;
  v1::DeleteRequest remove;
  Fill(0, remove.mutable_fence());
  v1::DeleteResponse removed;
  remove.set_job("job");
  remove.set_checkpoint_id(id);
  EXPECT_TRUE(checkpoint_stub_->Delete(&delete_context, remove, &removed).ok());
  EXPECT_FALSE(Download(id, 0).ok());
}

TEST_F(ComponentServicesTest,
       AnUploadWithAWrongChecksumIsRefusedAndCanBeRepeated) {
  const std::string data(3 << 20, 'x');
  ASSERT_OK_AND_ASSIGN(const std::string id, BeginCheckpoint(1));
  EXPECT_THAT(Upload(id, 0, data, 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("CRC-32C")));
  EXPECT_THAT(Commit(id), StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("missing: 0")));
  EXPECT_OK(Upload(id, 0, data));
  EXPECT_OK(Commit(id));
  EXPECT_TRUE(Download(id, 0).value_or("unreadable") == data);
}

TEST_F(ComponentServicesTest, AnUploadWithoutHeaderIsRefused) {
  Context context;
  v1::UploadResponse response;
  const auto writer = checkpoint_stub_->Upload(&context, &response);
  v1::UploadRequest message;
  message.mutable_chunk()->set_data("x");
  writer->Write(message);
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ComponentServicesTest, AnUploadThatSendsNothingIsEnded) {
  Context context;
  v1::UploadResponse response;
  const auto writer = checkpoint_stub_->Upload(&context, &response);
  const grpc::Status status = writer->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("header"));
}

TEST_F(ComponentServicesTest, ADownloadThatIsNotReadIsEnded) {
  RpcOptions options = MakeRpcOptions();
  options.transfer_timeout = absl::Milliseconds(100);
  CheckpointService hasty(options, checkpoints_.get(), &validator_);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&hasty);
  const auto server = builder.BuildAndStart();
  const auto stub = v1::Checkpoint::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  // More than the windows of the connection hold.
  const std::string data(32 << 20, 'x');
  ASSERT_OK_AND_ASSIGN(const std::string id, BeginCheckpoint(1));
  ASSERT_OK(Upload(id, 0, data));
  ASSERT_OK(Commit(id));
  Context context;
  v1::DownloadRequest request;
  request.set_job("job");
  request.set_checkpoint_id(id);
  const auto reader = stub->Download(&context, request);
  // Shutdown waits for the calls: it returns once the deadline has ended this
  // one, which is not read, and long before the client gives up.
  reader->WaitForInitialMetadata();
  const auto started = std::chrono::steady_clock::now();
  server->Shutdown();
  EXPECT_LT(std::chrono::steady_clock::now() - started,
            std::chrono::seconds(30));
  v1::DownloadChunk message;
  size_t received = 0;
  while (reader->Read(&message)) received += message.chunk().data().size();
  EXPECT_LT(received, data.size());
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(ComponentServicesTest, DeleteIsFencedAndKeepsToItsJob) {
  ASSERT_OK_AND_ASSIGN(const std::string id, BeginCheckpoint(1));
  ASSERT_OK(Upload(id, 0, "data"));
  ASSERT_OK(Commit(id));
  const auto remove = [&](int64_t generation, const std::string& job) {
    Context context;
    v1::DeleteRequest request;
    v1::DeleteResponse response;
    Fill(0, request.mutable_fence());
    request.mutable_fence()->set_generation(generation);
    request.set_job(job);
    request.set_checkpoint_id(id);
    return FromGrpcStatus(
        checkpoint_stub_->Delete(&context, request, &response));
  };
  EXPECT_THAT(remove(0, "job"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("stale")));
  EXPECT_THAT(remove(1, "other"), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("\"other\"")));
  EXPECT_TRUE(Download(id, 0).ok());
  EXPECT_OK(remove(1, ""));
  EXPECT_FALSE(Download(id, 0).ok());
}

// Messages of an upload of "0123456789" in chunks of two bytes, which `change`
// spoils.
using Chunks = std::vector<v1::UploadRequest>;
class SpoiledUploadTest : public ComponentServicesTest {
 protected:
  absl::Status UploadSpoiled(const std::function<void(Chunks*)>& change) {
    const std::string data = "0123456789";
    Chunks chunks;
    for (size_t at = 0; at < data.size(); at += 2) {
      v1::Chunk* const chunk = chunks.emplace_back().mutable_chunk();
      chunk->set_offset(static_cast<int64_t>(at));
      chunk->set_data(data.substr(at, 2));
      chunk->set_crc32c(Crc32c(chunk->data()));
    }
    change(&chunks);
    const absl::StatusOr<std::string> id = BeginCheckpoint(1);
    if (!id.ok()) return id.status();
    Context context;
    v1::UploadResponse response;
    const auto writer = checkpoint_stub_->Upload(&context, &response);
    v1::UploadRequest message;
    Fill(0, message.mutable_header()->mutable_fence());
    message.mutable_header()->set_checkpoint_id(*id);
    message.mutable_header()->set_bytes(static_cast<int64_t>(data.size()));
    message.mutable_header()->set_crc32c(Crc32c(data));
    bool open = writer->Write(message);
    for (const v1::UploadRequest& chunk : chunks) {
      open = open && writer->Write(chunk);
    }
    writer->WritesDone();
    const absl::Status uploaded = FromGrpcStatus(writer->Finish());
    EXPECT_EQ(Commit(*id).ok(), uploaded.ok()) << "a spoiled shard counts";
    return uploaded;
  }
};

TEST_F(SpoiledUploadTest, ItsStreamIsFineUnlessItIsSpoiled) {
  EXPECT_OK(UploadSpoiled([](Chunks*) {}));
}

TEST_F(SpoiledUploadTest, IsRefusedWithTheNameOfTheShard) {
  const auto lost = [](const char* text) {
    return StatusIs(absl::StatusCode::kDataLoss,
                    testing::AllOf(HasSubstr("shard 0"), HasSubstr(text)));
  };
  EXPECT_THAT(UploadSpoiled([](Chunks* c) { c->pop_back(); }),
              lost("only 8 of the announced 10"));
  EXPECT_THAT(UploadSpoiled([](Chunks* c) { c->clear(); }),
              lost("only 0 of the announced 10"));
  EXPECT_THAT(UploadSpoiled([](Chunks* c) { std::swap((*c)[1], (*c)[2]); }),
              lost("at offset 4 came where offset 2 was next"));
  EXPECT_THAT(UploadSpoiled([](Chunks* c) { c->insert(c->begin(), (*c)[0]); }),
              lost("at offset 0 came where offset 2 was next"));
  EXPECT_THAT(UploadSpoiled([](Chunks* c) { c->erase(c->begin() + 2); }),
              lost("at offset 6 came where offset 4 was next"));
  EXPECT_THAT(UploadSpoiled([](Chunks* c) {
                c->push_back(c->back());
                c->back().mutable_chunk()->set_offset(10);
              }),
              lost("more bytes came than the announced 10"));
  // Whole chunks of other bytes: each is fine by itself.
  EXPECT_THAT(UploadSpoiled([](Chunks* c) {
                v1::Chunk* const chunk = (*c)[3].mutable_chunk();
                chunk->set_data("xx");
                chunk->set_crc32c(Crc32c("xx"));
              }),
              lost("has CRC-32C"));
}

class OperatorTest : public ComponentServicesTest {
 protected:
  static void FillOperator(v1::Fence* fence) {
    fence->set_job("job");
    fence->set_request_id(7);
  }
  absl::StatusOr<v1::VerifyProgress> Verify(const std::string& id) {
    Context context;
    v1::VerifyRequest request;
    request.set_job("job");
    request.set_checkpoint_id(id);
    const auto reader = checkpoint_stub_->Verify(&context, request);
    v1::VerifyProgress last;
    v1::VerifyProgress progress;
    while (reader->Read(&progress)) {
      EXPECT_GE(progress.bytes_done(), last.bytes_done());
      EXPECT_GE(progress.shards_done(), last.shards_done());
      last = progress;
      ++messages_;
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return FromGrpcStatus(status);
    return last;
  }
  absl::StatusOr<std::string> Save(const std::vector<std::string>& shards) {
    absl::StatusOr<std::string> id =
        BeginCheckpoint(static_cast<int>(shards.size()));
    for (size_t i = 0; id.ok() && i < shards.size(); ++i) {
      EXPECT_OK(Upload(*id, static_cast<int>(i), shards[i]));
    }
    if (id.ok()) {
      EXPECT_OK(Commit(*id));
    }
    return id;
  }

  int messages_ = 0;
};

TEST_F(OperatorTest, VerifyReportsItsProgress) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       Save({std::string(40 << 20, 'x'), "", "small"}));
  ASSERT_OK_AND_ASSIGN(const v1::VerifyProgress last, Verify(id));
  EXPECT_EQ(last.shards_done(), 3);
  EXPECT_EQ(last.shards(), 3);
  EXPECT_EQ(last.bytes_done(), (40 << 20) + 5);
  EXPECT_EQ(last.bytes(), last.bytes_done());
  EXPECT_GE(messages_, 5);
  EXPECT_THAT(Verify("other"),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
}

TEST_F(OperatorTest, VerifyNamesDamagedShards) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save({"one", "two", "three"}));
  const std::string folder = absl::StrCat("/checkpoints/job/", id);
  ASSERT_OK(files_.FlipBit(absl::StrCat(folder, "/shard-00001.2"), 1));
  EXPECT_THAT(Verify(id), StatusIs(absl::StatusCode::kDataLoss,
                                   testing::AllOf(HasSubstr("shard 1 (file"),
                                                  HasSubstr("damaged"))));
}

TEST_F(OperatorTest, VerifyThatIsCancelledReleasesItsShard) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       Save({std::string(40 << 20, 'x')}));
  for (int i = 0; i < 3; ++i) {
    Context context;
    v1::VerifyRequest request;
    request.set_job("job");
    request.set_checkpoint_id(id);
    const auto reader = checkpoint_stub_->Verify(&context, request);
    v1::VerifyProgress progress;
    ASSERT_TRUE(reader->Read(&progress));
    context.TryCancel();
    EXPECT_FALSE(reader->Finish().ok());
  }
  EXPECT_OK(Verify(id));
}

TEST_F(OperatorTest, ShowListsTheShards) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save({"one", "three"}));
  Context context;
  v1::ShowRequest request;
  v1::ShowResponse response;
  request.set_job("job");
  request.set_checkpoint_id(id);
  ASSERT_TRUE(checkpoint_stub_->Show(&context, request, &response).ok());
  EXPECT_EQ(response.checkpoint().checkpoint_id(), id);
  ASSERT_EQ(response.shards_size(), 2);
  EXPECT_EQ(response.shards(1).shard(), 1);
  EXPECT_EQ(response.shards(1).bytes(), 5);
  EXPECT_EQ(response.shards(1).crc32c(), Crc32c("three"));
  EXPECT_EQ(response.shards(1).file(), "shard-00001.2");
  Context other;
  request.set_checkpoint_id("other");
  EXPECT_EQ(checkpoint_stub_->Show(&other, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(OperatorTest, OnlyAnImportIsBegunByAnOperatorAndByNoOther) {
  const auto begin = [&](bool is_operator, bool import) {
    Context context;
    v1::BeginRequest request;
    v1::BeginResponse response;
    if (is_operator) {
      FillOperator(request.mutable_fence());
    } else {
      Fill(0, request.mutable_fence());
    }
    request.set_shards(1);
    if (import) request.mutable_import();
    return FromGrpcStatus(
        checkpoint_stub_->Begin(&context, request, &response));
  };
  EXPECT_THAT(begin(true, false),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(begin(false, true),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_OK(begin(true, true));
  EXPECT_OK(begin(false, false));
}

TEST_F(OperatorTest, AnOperatorDeletes) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save({"data"}));
  Context context;
  v1::DeleteRequest request;
  v1::DeleteResponse response;
  FillOperator(request.mutable_fence());
  request.set_checkpoint_id(id);
  EXPECT_TRUE(checkpoint_stub_->Delete(&context, request, &response).ok());
  EXPECT_FALSE(Download(id, 0).ok());
}

TEST_F(ComponentServicesTest, AFlippedBitOnDiskIsReportedAtDownload) {
  ASSERT_OK_AND_ASSIGN(const std::string id, BeginCheckpoint(1));
  ASSERT_OK(Upload(id, 0, std::string(100, 'x')));
  ASSERT_OK(Commit(id));
  ASSERT_OK(files_.FlipBit(
      absl::StrCat("/checkpoints/job/", id, "/shard-00000.1"), 50));
  EXPECT_THAT(Download(id, 0),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
}

TEST(MaxHeldBytesTest, IsAQuarterOfTheMemoryButEnoughForAJob) {
  RpcOptions options;
  EXPECT_EQ(MaxHeldBytes(options, int64_t{8} << 30), int64_t{2} << 30);
  EXPECT_EQ(MaxHeldBytes(options, 256 << 20), 64 << 20);
  EXPECT_EQ(MaxHeldBytes(options, 100 << 20), 64 << 20);
  options.max_held_bytes = 5 << 20;
  EXPECT_EQ(MaxHeldBytes(options, int64_t{8} << 30), 5 << 20);
}

}  // namespace
}  // namespace coxswain::server
