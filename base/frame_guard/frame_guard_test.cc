#include "base/frame_guard/frame_guard.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/frame_guard/guarded_connections.h"
#include "base/unique_fd.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/hostile/http2.h"

namespace coxswain {
namespace {

constexpr int kPatienceMs = 60'000;

// Knows no method, and says so once it has the whole request; /waits, of which
// there may be one, is answered when its client gives up.
class KnowsNothing : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Reactor(context->method() == "/waits");  // gRPC owns it.
  }

 private:
  class Reactor : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(bool waits) : waits_(waits) { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (waits_ && ok) return;
      FinishOnce(grpc::StatusCode::UNIMPLEMENTED);
    }
    void OnCancel() override { FinishOnce(grpc::StatusCode::CANCELLED); }
    void OnDone() override { delete this; }

   private:
    void FinishOnce(grpc::StatusCode code) {
      if (!finished_.exchange(true)) Finish(grpc::Status(code, ""));
    }

    const bool waits_;
    std::atomic<bool> finished_{false};
    grpc::ByteBuffer request_;
  };
};

class FrameGuardTest : public testing::Test {
 protected:
  FrameGuardTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.SetMaxReceiveMessageSize(64 << 20);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~FrameGuardTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }

  // A connection that has greeted, and how a call on it would name it.
  struct Client {
    UniqueFd fd;
    std::string peer;
  };
  Client Connect() const {
    Client client;
    client.fd = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(connect(client.fd.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    socklen_t size = sizeof(address);
    getsockname(client.fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    client.peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
    EXPECT_TRUE(Send(client, kHttp2Preface));
    EXPECT_TRUE(Send(client, Http2Frame(kHttp2Settings, 0, 0, "")));
    // The server's settings: from now on it is read.
    char byte;
    EXPECT_EQ(recv(client.fd.get(), &byte, 1, 0), 1);
    return client;
  }
  static bool Send(const Client& client, absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent =
          send(client.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Reads until the server has ended the connection.
  static bool IsEnded(const Client& client) {
    char bytes[4096];
    pollfd ready = {client.fd.get(), POLLIN, 0};
    while (poll(&ready, 1, kPatienceMs) > 0) {
      if (recv(client.fd.get(), bytes, sizeof(bytes), 0) <= 0) return true;
    }
    return false;
  }
  // A client of gRPC's own is answered: the server knows no method.
  grpc::StatusCode Call(const std::string& request) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(),
        arguments);
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(kPatienceMs));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(request);
    const auto call = stub.PrepareUnaryCall(
        &context, "/a/b", grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    void* tag = nullptr;
    bool ok = false;
    call->Finish(&answer, &status, &tag);
    queue.Next(&tag, &ok);
    return status.error_code();
  }
  static std::string BeginCall(uint32_t stream,
                               absl::string_view method = "/a/b") {
    return Http2Frame(kHttp2Headers, kHttp2EndHeaders, stream,
                      GrpcHeaders(method));
  }
  static void ReadUntil(const Client& client, absl::string_view text) {
    std::string got;
    char bytes[4096];
    while (!absl::StrContains(got, text)) {
      const ssize_t size = recv(client.fd.get(), bytes, sizeof(bytes), 0);
      ASSERT_GT(size, 0) << got;
      got.append(bytes, static_cast<size_t>(size));
    }
  }
  // Returns once the server has read what came before.
  static void Ping(const Client& client) {
    ASSERT_TRUE(Send(client, Http2Frame(kHttp2Ping, 0, 0, "12345678")));
    ReadUntil(client, "12345678");
  }

  int port_ = 0;
  KnowsNothing service_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(FrameGuardTest, ItWorksWithThisGrpc) {
  EXPECT_TRUE(FrameGuard::Works());
}

TEST_F(FrameGuardTest, WhoCallsAsOthersDoIsAnswered) {
  const FrameGuard guard(port_);
  const int64_t before = FrameGuard::ended();
  EXPECT_EQ(Call(""), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Call(std::string(3 << 20, 'x')), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(FrameGuard::ended(), before);
}

TEST_F(FrameGuardTest, HeadersWithoutAnEndAreTheEnd) {
  const Client client = Connect();
  EXPECT_TRUE(Send(client, Http2Frame(kHttp2Headers, 0, 1, EndlessHeader())));
  for (int i = 0; i < 100; ++i) {
    if (!Send(client,
              Http2Frame(kHttp2Continuation, 0, 1, std::string(16'384, 'a'))))
      break;
  }
  EXPECT_TRUE(IsEnded(client));
  EXPECT_EQ(Call(""), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(FrameGuardTest, AStrangerMayBeginAFewCalls) {
  const FrameGuard guard(port_);
  const Client client = Connect();
  EXPECT_TRUE(FrameGuard::IsStranger(client.peer));
  for (uint32_t i = 0; i <= GuardedConnections::Limits().stranger_calls; ++i) {
    Send(client, BeginCall(2 * i + 1));
  }
  EXPECT_TRUE(IsEnded(client));
}

TEST_F(FrameGuardTest, WhoIsKnownMayBeginMore) {
  const FrameGuard guard(port_);
  const Client client = Connect();
  FrameGuard::Know(client.peer);
  EXPECT_FALSE(FrameGuard::IsStranger(client.peer));
  for (uint32_t i = 0; i <= 2 * GuardedConnections::Limits().stranger_calls;
       ++i) {
    ASSERT_TRUE(Send(client, BeginCall(2 * i + 1)));
  }
  Ping(client);
}

TEST_F(FrameGuardTest, ItKnowsWhatGrpcHolds) {
  ASSERT_EQ(FrameGuard::held(), 0);
  const Client client = Connect();
  const std::string message = GrpcMessage(std::string(10'000, 'x'));
  ASSERT_TRUE(Send(client, BeginCall(1, "/waits")));
  ASSERT_TRUE(Send(client, Http2Frame(kHttp2Data, 0, 1, message)));
  // And one that is not whole.
  ASSERT_TRUE(Send(client, BeginCall(3)));
  ASSERT_TRUE(
      Send(client, Http2Frame(kHttp2Data, 0, 3, message.substr(0, 5005))));
  Ping(client);
  EXPECT_EQ(FrameGuard::held(), 15'000);
  ASSERT_TRUE(
      Send(client, Http2Frame(kHttp2Reset, 0, 1, std::string(4, '\0'))));
  Ping(client);
  EXPECT_EQ(FrameGuard::held(), 5'000);
  // When it is whole, the server answers: the call ends by itself.
  ASSERT_TRUE(Send(client, Http2Frame(kHttp2Data, kHttp2EndStream, 3,
                                      message.substr(5005))));
  ReadUntil(client, "grpc-status");
  Ping(client);
  EXPECT_EQ(FrameGuard::held(), 0);
}

TEST_F(FrameGuardTest, WithoutAGuardNobodyIsAStranger) {
  const Client client = Connect();
  EXPECT_FALSE(FrameGuard::IsStranger(client.peer));
}

TEST_F(FrameGuardTest, AStrangerMaySendOneLargeMessageAndNotMore) {
  const FrameGuard guard(port_);
  const int64_t before = FrameGuard::ended();
  EXPECT_EQ(Call(std::string(32 << 20, 'x')), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(FrameGuard::ended(), before);
  EXPECT_EQ(Call(std::string(34 << 20, 'x')), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(FrameGuard::ended(), before + 1);
}

}  // namespace
}  // namespace coxswain
