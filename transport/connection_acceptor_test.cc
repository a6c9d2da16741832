#include "transport/connection_acceptor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "transport/accepting_server.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

constexpr auto kTimeout = std::chrono::seconds(20);
const char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string EmptySettings() {
  return std::string("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 9);
}

// Returns the address of the caller; a call of /stay lasts for as long as its
// client does.
class EchoService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Reactor(context->method() == "/stay", context->peer(),
                       &calls_);  // gRPC owns it.
  }

 private:
  class Reactor : public grpc::ServerGenericBidiReactor {
   public:
    Reactor(bool stays, std::string peer, Mutex* calls)
        : stays_(stays), peer_(std::move(peer)), calls_(calls) {
      if (stays_) StartSendInitialMetadata();
      StartRead(&request_);
    }
    void OnReadDone(bool ok) override {
      const MutexLock lock(calls_);
      if (ok && stays_) return StartRead(&request_);
      Finish(grpc::Status(grpc::StatusCode::ALREADY_EXISTS, peer_));
    }
    void OnDone() override {
      { const MutexLock lock(calls_); }
      delete this;
    }

   private:
    const bool stays_;
    const std::string peer_;
    Mutex* const calls_;
    grpc::ByteBuffer request_;
  };
  // Shows ThreadSanitizer the order of a reactor's calls, which gRPC keeps in a
  // library that is not instrumented.
  Mutex calls_;
};

struct TestOptions : ConnectionAcceptor::Limits {
  absl::Duration keepalive_time = absl::Seconds(10);
  size_t max_connections = 65'536;
};

// A gRPC server behind an acceptor.
class TestServer {
 public:
  explicit TestServer(const TestOptions& options = TestOptions(),
                      const std::string& host = "127.0.0.1",
                      Preface preface = Preface::kHttp2) {
    auto listeners = Listen({host, 0});
    EXPECT_OK(listeners);
    port_ = listeners->port;
    AcceptingServer::Options accepting;
    accepting.listeners = *std::move(listeners);
    accepting.limits = options;
    accepting.connections =
        std::make_shared<AcceptedConnections>(options.max_connections);
    accepting.credentials = grpc::InsecureServerCredentials();
    accepting.preface = preface;
    accepting.keepalive_time = options.keepalive_time;
    accepting.keepalive_timeout = options.keepalive_timeout;
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    auto server = AcceptingServer::Start(std::move(accepting), &builder);
    EXPECT_OK(server);
    server_ = *std::move(server);
  }

  int port() const { return port_; }
  void StopAccepting() { server_->StopAccepting(); }
  void Shutdown() { server_->Shutdown(absl::ZeroDuration()); }

 private:
  EchoService service_;
  std::unique_ptr<AcceptingServer> server_;
  int port_ = 0;
};

// A gRPC client with a connection of its own.
class Client {
 public:
  explicit Client(int port, const std::string& host = "127.0.0.1") {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
        absl::StrCat(host, ":", port), grpc::InsecureChannelCredentials(),
        arguments));
  }

  absl::Status Call() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    const grpc::Slice empty;
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> status;
    stub_->UnaryCall(
        &context, "/call", grpc::StubOptions(), &request, &response,
        [&status](grpc::Status ended) { status.set_value(std::move(ended)); });
    return FromGrpcStatus(status.get_future().get());
  }
  // Returns the peer that the server has seen.
  std::string Peer() { return std::string(Call().message()); }

  grpc::GenericStub& stub() { return *stub_; }

 private:
  std::unique_ptr<grpc::GenericStub> stub_;
};

MATCHER(Works, "") {
  *result_listener << arg.ToString();
  return arg.code() == absl::StatusCode::kAlreadyExists;
}

// Connects from a loopback address of the caller's choice: a peer is identified
// by its address.
UniqueFd Connect(int port, const std::string& from) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  inet_pton(AF_INET, from.c_str(), &address.sin_addr);
  EXPECT_EQ(bind(fd.get(), name, sizeof(address)), 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(connect(fd.get(), name, sizeof(address)), 0);
  return fd;
}

void Send(const UniqueFd& fd, const std::string& bytes) {
  // The other side may have closed already.
  send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

bool IsReadable(const UniqueFd& fd, std::chrono::milliseconds timeout) {
  pollfd readable = {fd.get(), POLLIN, 0};
  return poll(&readable, 1, timeout.count()) > 0;
}

// Reads until the other side closes. Returns false at the deadline.
bool WaitUntilClosed(const UniqueFd& fd) {
  char data[4096];
  while (IsReadable(fd, kTimeout)) {
    if (read(fd.get(), data, sizeof(data)) <= 0) return true;
  }
  return false;
}

// Captures what is logged in this scope.
class LogCapture {
 public:
  LogCapture() { testing::internal::CaptureStderr(); }
  ~LogCapture() {
    if (!ended_) testing::internal::GetCapturedStderr();
  }
  std::vector<std::string> End() {
    ended_ = true;
    std::vector<std::string> lines = absl::StrSplit(
        testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
    return lines;
  }

 private:
  bool ended_ = false;
};

TEST(ConnectionAcceptorTest, ClientsAreAcceptedAndKnown) {
  TestServer server;
  EXPECT_THAT(Client(server.port()).Peer(), StartsWith("ipv4:127.0.0.1:"));
}

TEST(ConnectionAcceptorTest, AWildcardKnowsItsClientsByTheirIpv4Address) {
  TestServer server(TestOptions(), "[::]");
  EXPECT_THAT(Client(server.port()).Peer(), StartsWith("ipv4:127.0.0.1:"));
  LogCapture log;
  const UniqueFd fd = Connect(server.port(), "127.0.1.1");
  Send(fd, "hello");
  EXPECT_TRUE(WaitUntilClosed(fd));
  EXPECT_THAT(log.End(), ElementsAre(HasSubstr("peer=127.0.1.1 ")));
}

TEST(ConnectionAcceptorTest, GarbageIsRefusedAndLoggedOnceForAPeer) {
  TestServer server;
  Client before(server.port());
  EXPECT_THAT(before.Call(), Works());
  LogCapture log;
  const CounterRandom random(/*seed=*/1, /*stream=*/0);
  for (int i = 0; i < 100; ++i) {
    std::string garbage(1 + static_cast<size_t>(i) * 7, '\xfe');
    for (size_t k = 1; k < garbage.size(); ++k) {
      garbage[k] = static_cast<char>(random.Bits(i * 1000 + k));
    }
    const UniqueFd fd = Connect(server.port(), "127.0.2.1");
    Send(fd, garbage);
    EXPECT_TRUE(WaitUntilClosed(fd));
    if (i == 50) {
      EXPECT_THAT(Client(server.port()).Call(), Works());
    }
  }
  const UniqueFd other = Connect(server.port(), "127.0.2.2");
  Send(other, "GET / HTTP/1.1\r\nHost: coxswain\r\n\r\n");
  EXPECT_TRUE(WaitUntilClosed(other));
  EXPECT_THAT(
      log.End(),
      ElementsAre(
          AllOf(HasSubstr(" W connection_refused peer=127.0.2.1 "),
                HasSubstr("does not speak HTTP/2"),
                HasSubstr("first_bytes=%fe")),
          AllOf(HasSubstr(" W connection_refused peer=127.0.2.2 "),
                HasSubstr("first_bytes=GET%20/%20HTTP/1.1%0d%0aHost:%20co"))));
  EXPECT_THAT(before.Call(), Works());
  EXPECT_THAT(Client(server.port()).Call(), Works());
}

TEST(ConnectionAcceptorTest, HalfAPrefaceIsRefusedWhenTheClientCloses) {
  TestServer server;
  LogCapture log;
  const UniqueFd fd = Connect(server.port(), "127.0.3.1");
  Send(fd, std::string(kPreface, 10));
  shutdown(fd.get(), SHUT_WR);
  EXPECT_TRUE(WaitUntilClosed(fd));
  EXPECT_THAT(
      log.End(),
      ElementsAre(HasSubstr("it closed the connection after 10 bytes of the")));
}

TEST(ConnectionAcceptorTest, TlsToAPortInPlainTextIsNamedInTheLog) {
  TestServer server;
  LogCapture log;
  const UniqueFd fd = Connect(server.port(), "127.0.39.1");
  Send(fd, std::string("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_TRUE(WaitUntilClosed(fd));
  EXPECT_THAT(log.End(), ElementsAre(AllOf(HasSubstr("it connects with TLS"),
                                           HasSubstr("--tls-cert"))));
}

TEST(ConnectionAcceptorTest, APortForTlsAcceptsNothingElse) {
  TestServer server(TestOptions(), "127.0.0.1", Preface::kTls);
  LogCapture log;
  const UniqueFd plain = Connect(server.port(), "127.0.39.2");
  Send(plain, kPreface);
  EXPECT_TRUE(WaitUntilClosed(plain));
  const UniqueFd garbage = Connect(server.port(), "127.0.39.3");
  Send(garbage, "GET / HTTP/1.1\r\n");
  EXPECT_TRUE(WaitUntilClosed(garbage));
  const UniqueFd half = Connect(server.port(), "127.0.39.4");
  Send(half, "\x16\x03\x01");
  shutdown(half.get(), SHUT_WR);
  EXPECT_TRUE(WaitUntilClosed(half));
  EXPECT_THAT(
      log.End(),
      ElementsAre(
          AllOf(HasSubstr("plain text"), HasSubstr("--tls-ca")),
          HasSubstr("it does not speak TLS"),
          HasSubstr(
              "it closed the connection after 3 bytes of the preface of TLS")));
}

TEST(ConnectionAcceptorTest, ALookAtThePortIsNotLogged) {
  TestServer server;
  LogCapture log;
  const UniqueFd fd = Connect(server.port(), "127.0.4.1");
  shutdown(fd.get(), SHUT_WR);
  EXPECT_TRUE(WaitUntilClosed(fd));
  EXPECT_THAT(log.End(), IsEmpty());
}

TEST(ConnectionAcceptorTest, SilenceEndsAtTheDeadline) {
  TestOptions options;
  options.preface_timeout = absl::Milliseconds(200);
  TestServer server(options);
  LogCapture log;
  const UniqueFd silent = Connect(server.port(), "127.0.5.1");
  const UniqueFd slow = Connect(server.port(), "127.0.5.2");
  Send(slow, std::string(kPreface, 23));
  EXPECT_TRUE(WaitUntilClosed(silent));
  EXPECT_TRUE(WaitUntilClosed(slow));
  EXPECT_THAT(
      log.End(),
      ElementsAre(
          AllOf(HasSubstr("peer=127.0.5.1"),
                HasSubstr("has not sent the preface"), HasSubstr("200ms")),
          AllOf(HasSubstr("peer=127.0.5.2"), HasSubstr("first_bytes=PRI%20"))));
  EXPECT_THAT(Client(server.port()).Call(), Works());
}

TEST(ConnectionAcceptorTest, APrefaceMayComeInPieces) {
  TestServer server;
  LogCapture log;
  const UniqueFd fd = Connect(server.port(), "127.0.6.1");
  for (const char c : std::string(kPreface)) Send(fd, std::string(1, c));
  Send(fd, EmptySettings());
  // gRPC answers with settings of its own: nothing of the preface was lost.
  ASSERT_TRUE(IsReadable(fd, kTimeout));
  char frame[9];
  ASSERT_EQ(recv(fd.get(), frame, sizeof(frame), MSG_WAITALL), 9);
  EXPECT_EQ(frame[3], 4);
  EXPECT_THAT(log.End(), IsEmpty());
}

TEST(ConnectionAcceptorTest, TheOldestOfTooManySilentOnesIsClosed) {
  TestOptions options;
  options.preface_timeout = absl::Hours(1);
  options.max_waiting_connections = 3;
  TestServer server(options);
  LogCapture log;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 5; ++i) {
    silent.push_back(Connect(server.port(), "127.0.7.1"));
  }
  EXPECT_TRUE(WaitUntilClosed(silent[0]));
  EXPECT_TRUE(WaitUntilClosed(silent[1]));
  // A client takes a place for a moment only.
  EXPECT_THAT(Client(server.port()).Call(), Works());
  EXPECT_TRUE(WaitUntilClosed(silent[2]));
  EXPECT_FALSE(IsReadable(silent[3], std::chrono::milliseconds(0)));
  EXPECT_FALSE(IsReadable(silent[4], std::chrono::milliseconds(0)));
  EXPECT_THAT(log.End(), ElementsAre(HasSubstr("max_waiting_connections")));
}

TEST(ConnectionAcceptorTest, ConnectionsHaveALimitAndEndedOnesMakeRoom) {
  TestOptions options;
  options.max_connections = 2;
  TestServer server(options);
  auto first = std::make_unique<Client>(server.port());
  Client second(server.port());
  EXPECT_THAT(first->Call(), Works());
  EXPECT_THAT(second.Call(), Works());
  LogCapture log;
  for (int i = 0; i < 3; ++i) {
    const UniqueFd third = Connect(server.port(), "127.0.8.1");
    Send(third, kPreface);
    EXPECT_TRUE(WaitUntilClosed(third));
  }
  EXPECT_THAT(log.End(), ElementsAre(AllOf(HasSubstr("peer=127.0.8.1"),
                                           HasSubstr("max_connections"))));
  first.reset();
  // The server sees the end of the first in its own time.
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  absl::Status status;
  do {
    status = Client(server.port()).Call();
  } while (!absl::IsAlreadyExists(status) &&
           std::chrono::steady_clock::now() < deadline);
  EXPECT_THAT(status, Works());
  EXPECT_THAT(second.Call(), Works());
}

TEST(ConnectionLimitTest, DescriptorsAreLeftForTheDisk) {
  EXPECT_EQ(ConnectionLimit(100, 1024), 100);
  EXPECT_EQ(ConnectionLimit(65'536, 1024), 768);
  EXPECT_EQ(ConnectionLimit(65'536, 20'000), 20'000 - 2048);
  EXPECT_EQ(ConnectionLimit(65'536, 1 << 20), 65'536);
  EXPECT_EQ(ConnectionLimit(65'536, RLIM_INFINITY), 65'536);
  EXPECT_EQ(ConnectionLimit(65'536), ConnectionLimit(ConnectionLimit(65'536)));
}

TEST(ConnectionAcceptorTest, ConnectionsThatDoNotAnswerProbesAreClosed) {
  TestOptions options;
  options.keepalive_time = absl::Milliseconds(300);
  options.keepalive_timeout = absl::Milliseconds(300);
  TestServer server(options);
  const UniqueFd fd = Connect(server.port(), "127.0.9.1");
  Send(fd, kPreface + EmptySettings());
  EXPECT_TRUE(WaitUntilClosed(fd));
}

// As for health checks: requests, answered on the acceptor's thread.
TEST(ConnectionAcceptorTest, ARequestOfHttp1IsHandedOverWhenItIsWhole) {
  auto listeners = Listen({"127.0.0.1", 0});
  ASSERT_OK(listeners);
  const int port = listeners->port;
  ConnectionAcceptor::Limits limits;
  limits.preface_timeout = absl::Hours(1);
  std::vector<std::string> requests;
  auto acceptor = ConnectionAcceptor::Open(
      *std::move(listeners), limits,
      [&requests](UniqueFd fd) {
        char data[4096];
        const ssize_t size = recv(fd.get(), data, sizeof(data), MSG_DONTWAIT);
        requests.emplace_back(data, std::max<ssize_t>(size, 0));
      },
      std::make_shared<AcceptedConnections>(1), Preface::kHttp1);
  ASSERT_OK(acceptor);
  const UniqueFd half = Connect(port, "127.0.12.1");
  Send(half, "GET /half HTTP/1.1\r\n");
  // Many more than are accepted at once: each is closed before the next.
  for (int i = 0; i < 20; ++i) {
    const UniqueFd whole = Connect(port, "127.0.12.2");
    Send(whole, "GET /whole HTTP/1.1\r\n");
    Send(whole, "\r\n");
    ASSERT_TRUE(WaitUntilClosed(whole)) << i;
  }
  // One that is too long is left to the library, which refuses it.
  const UniqueFd endless = Connect(port, "127.0.12.3");
  Send(endless, std::string(ConnectionAcceptor::kMaxHttpRequest, 'x'));
  ASSERT_TRUE(WaitUntilClosed(endless));
  Send(half, "\r\n");
  ASSERT_TRUE(WaitUntilClosed(half));
  acceptor->reset();
  ASSERT_THAT(requests, SizeIs(22));
  EXPECT_EQ(requests[0], "GET /whole HTTP/1.1\r\n\r\n");
  EXPECT_EQ(requests[21], "GET /half HTTP/1.1\r\n\r\n");
}

TEST(ConnectionAcceptorTest, OnceItIsClosedConnectionsStayAndNoneAreAdded) {
  TestServer server;
  Client client(server.port());
  EXPECT_THAT(client.Call(), Works());
  const UniqueFd waiting = Connect(server.port(), "127.0.10.1");
  server.StopAccepting();
  EXPECT_TRUE(WaitUntilClosed(waiting));
  EXPECT_THAT(client.Call(), Works());
  EXPECT_THAT(Client(server.port()).Call(),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST(ConnectionAcceptorTest, AShutdownEndsTheStreamsOfClients) {
  TestServer server;
  Client client(server.port());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto stream = client.stub().PrepareCall(&context, "/stay", &queue);
  stream->StartCall(nullptr);
  ASSERT_TRUE(next());
  stream->ReadInitialMetadata(nullptr);
  ASSERT_TRUE(next());
  const UniqueFd idle = Connect(server.port(), "127.0.11.1");
  Send(idle, kPreface + EmptySettings());
  ASSERT_TRUE(IsReadable(idle, kTimeout));
  server.Shutdown();
  grpc::ByteBuffer event;
  stream->Read(&event, nullptr);
  EXPECT_FALSE(next());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  EXPECT_TRUE(next());
  EXPECT_THAT(
      FromGrpcStatus(status),
      AllOf(Not(IsOk()),
            Not(StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_))));
  EXPECT_TRUE(WaitUntilClosed(idle));
}

}  // namespace
}  // namespace coxswain
