// The standard health and reflection services, as any gRPC tool calls them:
// by name, without generated code.

#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/components/components.h"
#include "server/coordinator.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

// Makes one bidirectional call: sends one message, and reads one.
std::string Ask(int port, const std::string& method,
                const std::string& message) {
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", port),
                                           grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto step = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(20));
  const auto call = stub.PrepareCall(&context, method, &queue);
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  call->StartCall(nullptr);
  EXPECT_TRUE(step());
  call->WriteLast(request, grpc::WriteOptions(), nullptr);
  EXPECT_TRUE(step());
  call->Read(&response, nullptr);
  const bool answered = step();
  grpc::Status status;
  call->Finish(&status, nullptr);
  step();
  queue.Shutdown();
  EXPECT_TRUE(answered) << method << ": " << status.error_message();
  grpc::Slice whole;
  if (!answered || !response.DumpToSingleSlice(&whole).ok()) return "";
  return std::string(reinterpret_cast<const char*>(whole.begin()),
                     whole.size());
}

TEST(StandardServicesTest, HealthIsServingAndReflectionListsOurServices) {
  CoordinatorOptions options;
  options.state_dir = testing::TempDir() + "/standard-services";
  auto coordinator = Coordinator::Start(options);
  ASSERT_OK(coordinator);
  const int port = (*coordinator)->port();

  // HealthCheckResponse{status: SERVING}.
  EXPECT_EQ(Ask(port, "/grpc.health.v1.Health/Check", ""), "\x08\x01");

  // ServerReflectionRequest{list_services: ""}.
  const std::string services = Ask(
      port, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      std::string("\x3a\x00", 2));
  for (const char* service : {"Rendezvous", "Group", "Schedule", "Checkpoint",
                              "Store", "Parameter", "Journal"}) {
    EXPECT_THAT(services, HasSubstr(absl::StrCat("coxswain.v1.", service)));
  }
}

TEST(StandardServicesTest, CallsAreTimedByTheCoordinatorsClock) {
  FakeClock clock;
  CoordinatorOptions options;
  options.state_dir = testing::TempDir() + "/timed-services";
  options.clock = &clock;
  options.count_calls = true;
  auto coordinator = Coordinator::Start(options);
  ASSERT_OK(coordinator);
  Ask((*coordinator)->port(), "/coxswain.v1.Rendezvous/Describe", "");
  const RpcMetrics::Snapshot counted = (*coordinator)->view().rpc->Read();
  const auto described = counted.methods.find("Rendezvous/Describe");
  ASSERT_NE(described, counted.methods.end());
  EXPECT_EQ(described->second.duration.count(), 1u);
  EXPECT_EQ(described->second.duration.sum(), 0) << "the clock stood still";
}

}  // namespace
}  // namespace coxswain::server
