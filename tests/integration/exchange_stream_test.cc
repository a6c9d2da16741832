// Exchange streams as gRPC carries them, by clients that are not ours: they
// stream while their generation ends, and they do not read.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "base/tensor_chunk.h"
#include "grpcpp/grpcpp.h"
#include "proto/parameter.grpc.pb.h"
#include "tests/support/environment.h"
#include "tests/support/parameter_server.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

// One rank's stream. It ends within a minute, whatever happens.
class Stream {
 public:
  Stream(const ParameterServer& server, int64_t generation, int rank, int size)
      : stub_(v1::Parameter::NewStub(grpc::CreateCustomChannel(
            absl::StrCat("127.0.0.1:", server.port()),
            grpc::InsecureChannelCredentials(), OwnConnection()))) {
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::minutes(1));
    stream_ = stub_->Exchange(&context_);
    v1::ExchangeRequest request;
    v1::ExchangeOpen& open = *request.mutable_open();
    open.mutable_fence()->set_job("job");
    open.mutable_fence()->set_generation(generation);
    open.set_group("group");
    open.set_rank(rank);
    open.set_size(size);
    EXPECT_TRUE(stream_->Write(request));
    v1::ExchangeResponse opened;
    EXPECT_TRUE(stream_->Read(&opened));
    EXPECT_TRUE(opened.opened());
  }

  // Begins the sum of a chunk of each rank, and gives the own one. False once
  // the stream has ended.
  bool Sum(uint64_t id, int64_t bytes) {
    v1::ExchangeRequest request;
    v1::ExchangeOperation& operation = *request.mutable_operation();
    operation.set_id(id);
    operation.set_name("t");
    operation.set_version(static_cast<int64_t>(id));
    operation.set_reduction(v1::REDUCTION_SUM);
    operation.set_dtype("uint8");
    operation.set_bytes(bytes);
    operation.set_root(-1);
    operation.set_peer(-1);
    operation.mutable_range()->set_bytes(bytes);
    operation.mutable_range()->set_count(1);
    operation.set_timeout_ms(60'000);
    const std::string data(static_cast<size_t>(bytes), '\1');
    request.mutable_chunk()->set_data(data);
    request.mutable_chunk()->set_crc32c(Crc32c(data));
    return stream_->Write(request);
  }
  bool Read(v1::ExchangeResponse* response) { return stream_->Read(response); }
  // Reads what is left.
  absl::Status Finish() {
    v1::ExchangeResponse response;
    while (stream_->Read(&response)) {
    }
    return FromGrpcStatus(stream_->Finish());
  }

 private:
  static grpc::ChannelArguments OwnConnection() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }

  const std::unique_ptr<v1::Parameter::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeResponse>>
      stream_;
};

TEST(ExchangeStreamTest, TheGenerationEndsWhileSixRanksStream) {
  constexpr int kSize = 6;
  const int64_t generations = EverySetting() ? 30 : 10;
  server::ParameterLimits limits;
  // A rank may get far ahead of one that has no processor for a while.
  limits.max_operations = size_t{1} << 20;
  ParameterServer server(limits);
  for (int64_t generation = 1; generation <= generations; ++generation) {
    std::atomic<int64_t> answers{0};
    std::vector<std::thread> writers, readers;
    std::vector<std::unique_ptr<Stream>> streams;
    for (int rank = 0; rank < kSize; ++rank) {
      streams.push_back(
          std::make_unique<Stream>(server, generation, rank, kSize));
    }
    for (const auto& opened : streams) {
      Stream* const stream = opened.get();
      writers.emplace_back([stream] {
        uint64_t id = 0;
        while (stream->Sum(++id, 3000)) {
        }
      });
      readers.emplace_back([&, stream] {
        v1::ExchangeResponse response;
        while (stream->Read(&response)) {
          // At another point of the exchange each time, the last one as late
          // however many there are.
          if (++answers == 10 + generation * 210 / generations) {
            server.parameters().OnGenerationEnded(
                "job", Generation(generation),
                absl::AbortedError("rank 9 left"));
          }
        }
      });
    }
    for (std::thread& thread : readers) thread.join();
    for (std::thread& thread : writers) thread.join();
    for (const auto& stream : streams) {
      EXPECT_THAT(stream->Finish(), StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("rank 9 left")));
    }
  }
  // Everything that was held for those streams is given back with them.
  server.Shutdown();
  EXPECT_EQ(server.parameters().bytes(), 0);
}

// More than the windows of a connection hold; fewer than may be under way.
constexpr uint64_t kUnread = 64;

// Of a group that has this rank only: it is sent back all that it gives.
std::unique_ptr<Stream> OpenWithoutReading(const ParameterServer& server) {
  auto stream = std::make_unique<Stream>(server, 1, 0, 1);
  for (uint64_t id = 1; id <= kUnread; ++id) {
    EXPECT_TRUE(stream->Sum(id, kTensorChunkBytes));
  }
  return stream;
}

TEST(ExchangeStreamTest, AStalledReaderEndsWithItsGeneration) {
  server::ParameterLimits limits;
  limits.max_write_time = absl::Hours(1);
  limits.end_grace = absl::Milliseconds(100);
  ParameterServer server(limits);
  const auto stream = OpenWithoutReading(server);
  server.parameters().OnGenerationEnded("job", Generation(1),
                                        absl::AbortedError("over"));
  // The server drops the message that is not read, and the participant with it.
  EXPECT_TRUE(server.WaitUntilEmpty());
  EXPECT_THAT(stream->Finish(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("the stream has ended, and the worker did not "
                                 "read")));
}

TEST(ExchangeStreamTest, AStalledReaderLeavesItsGroup) {
  server::ParameterLimits limits;
  limits.max_write_time = absl::Seconds(2);
  ParameterServer server(limits);
  Stream reads(server, 1, 0, 2), stands_still(server, 1, 1, 2);
  std::string failure;
  std::thread reader([&] {
    v1::ExchangeResponse response;
    while (failure.empty() && reads.Read(&response)) {
      failure = response.message();
    }
  });
  std::thread writer([&] {
    uint64_t id = 0;
    while (id < kUnread && stands_still.Sum(++id, kTensorChunkBytes)) {
    }
  });
  // One more than the other one, for which nothing but its leaving is an end.
  for (uint64_t id = 1; id <= kUnread + 1; ++id) {
    EXPECT_TRUE(reads.Sum(id, kTensorChunkBytes));
  }
  writer.join();
  reader.join();
  EXPECT_THAT(failure, HasSubstr("part of rank 1 will not come"));
  EXPECT_THAT(stands_still.Finish(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("the worker did not read")));
}

}  // namespace
}  // namespace coxswain
