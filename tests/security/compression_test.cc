// A message that is compressed may be a thousand times as large as what comes
// of it, and no server of this project decompresses one: with real clients, at
// each port, by each kind of method.

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "client/fallback/fallback_coordinator.h"
#include "client/fallback/fallback_server.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "schedule/plan.h"
#include "server/coordinator.h"
#include "tests/support/environment.h"
#include "tests/support/process_status.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kPiece = 1 << 20;
// What the process may take for a call.
constexpr int64_t kMostKib = 48 << 10;

// A server in this process, which the test can call.
struct Served {
  std::string address;
  std::shared_ptr<void> server;
};

Served ServeCoordinator() {
  server::CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.state_dir =
      absl::StrCat(testing::TempDir(), "/compression-", getpid());
  std::shared_ptr<server::Coordinator> coordinator =
      server::Coordinator::Start(options).value();
  return {absl::StrCat("127.0.0.1:", coordinator->port()), coordinator};
}

Served ServeFallback() {
  FallbackCoordinator::Options options;
  options.world_size = 2;
  options.plan = [] { return schedule::Plan(); };
  std::shared_ptr<FallbackServer> fallback =
      FallbackServer::Start("127.0.0.1",
                            std::make_shared<FallbackCoordinator>(options))
          .value();
  return {fallback->address(), fallback};
}

struct Port {
  const char* name;
  Served (*serve)();
  size_t mib;  // of a message that it would take as it is sent
  std::vector<std::string> methods;  // one of each kind that it has
};

std::vector<Port> Ports() {
  return {
      {"Coordinator",
       ServeCoordinator,
       96,
       {"/coxswain.v1.Rendezvous/Join", "/coxswain.v1.Rendezvous/Attach",
        "/coxswain.v1.Store/Watch",
        // Those that take messages in gRPC's own buffers.
        "/coxswain.v1.Checkpoint/Upload", "/coxswain.v1.Checkpoint/Download",
        "/coxswain.v1.Parameter/Exchange", "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}},
      {"Fallback", ServeFallback, 96, {"/coxswain.v1.Rendezvous/Attach"}},
  };
}

// Zeros, which lie in memory once.
grpc::ByteBuffer LongMessage(size_t mib) {
  static const auto& zeros = *new std::string(kPiece, '\0');
  const grpc::Slice piece(zeros.data(), zeros.size(),
                          grpc::Slice::STATIC_SLICE);
  const std::vector<grpc::Slice> pieces(mib, piece);
  return grpc::ByteBuffer(pieces.data(), pieces.size());
}

// Calls with one message, and returns how the call ended.
absl::Status Call(const std::string& address, const std::string& method,
                  grpc_compression_algorithm algorithm,
                  const grpc::ByteBuffer& message) {
  grpc::GenericStub stub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return ok;
  };
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::minutes(1));
  context.set_compression_algorithm(algorithm);
  const auto stream = stub.PrepareCall(&context, method, &queue);
  stream->StartCall(nullptr);
  await();
  stream->WriteLast(message, grpc::WriteOptions(), nullptr);
  await();
  // Its end comes after the last answer.
  grpc::ByteBuffer answer;
  do {
    stream->Read(&answer, nullptr);
  } while (await());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  await();
  queue.Shutdown();
  return FromGrpcStatus(status);
}

// So that VmHWM is of what comes from now on (proc(5)).
void ForgetPeakOfMemory() {
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
}

class CompressionTest : public testing::TestWithParam<
                            std::tuple<Port, grpc_compression_algorithm>> {};

TEST_P(CompressionTest, ACompressedMessageIsRefusedAndNotDecompressed) {
  const auto& [port, algorithm] = GetParam();
  const Served served = port.serve();
  // By which algorithm is the same to all methods.
  const size_t stride =
      algorithm == GRPC_COMPRESS_GZIP || EverySetting() ? 1 : 4;
  for (size_t i = 0; i < port.methods.size(); i += stride) {
    const std::string& method = port.methods[i];
    ForgetPeakOfMemory();
    const int64_t before = StatusKib(getpid(), "VmHWM");
    ASSERT_GT(before, 0);
    EXPECT_THAT(
        Call(served.address, method, algorithm, LongMessage(port.mib)),
        StatusIs(absl::StatusCode::kUnimplemented,
                 AllOf(HasSubstr("ompression"), HasSubstr("disabled"))));
    EXPECT_LT(StatusKib(getpid(), "VmHWM") - before, kMostKib) << method;
  }
}

TEST_P(CompressionTest, ACallWithoutCompressionIsTaken) {
  const Port& port = std::get<0>(GetParam());
  const Served served = port.serve();
  const grpc::Slice nothing;
  const absl::Status status =
      Call(served.address, port.methods.front(), GRPC_COMPRESS_NONE,
           grpc::ByteBuffer(&nothing, 1));
  // Whatever a service thinks of an empty one.
  EXPECT_FALSE(absl::IsUnimplemented(status)) << status;
  EXPECT_FALSE(absl::IsUnavailable(status)) << status;
}

std::string NameOf(
    const testing::TestParamInfo<CompressionTest::ParamType>& p) {
  return absl::StrCat(
      std::get<0>(p.param).name,
      std::get<1>(p.param) == GRPC_COMPRESS_GZIP ? "Gzip" : "Deflate");
}

INSTANTIATE_TEST_SUITE_P(
    All, CompressionTest,
    testing::Combine(testing::ValuesIn(Ports()),
                     testing::Values(GRPC_COMPRESS_GZIP,
                                     GRPC_COMPRESS_DEFLATE)),
    NameOf);

}  // namespace
}  // namespace coxswain
