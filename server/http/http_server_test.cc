// The server over real sockets: what it serves, and what it refuses.
#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "server/http/host_names.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// A connection whose bytes the test chooses.
class Wire {
 public:
  explicit Wire(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address),
                         sizeof(address)) == 0;
  }
  bool connected() const { return connected_; }
  bool Send(const std::string& text) {
    return send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  // All that comes until the server closes the connection.
  std::string ReadAll() {
    std::string all;
    char buffer[4096];
    const absl::Time until = Clock::Real()->Now() + kTimeout;
    while (Clock::Real()->Now() < until) {
      pollfd entry = {fd_.get(), POLLIN, 0};
      if (poll(&entry, 1, 100) <= 0) continue;
      const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (got <= 0) return all;
      all.append(buffer, static_cast<size_t>(got));
    }
    ADD_FAILURE() << "the server has not closed the connection";
    return all;
  }

 private:
  UniqueFd fd_;
  bool connected_ = false;
};

HttpAnswer Page(const std::string& body) {
  HttpAnswer answer;
  answer.content_type = "text/plain; charset=utf-8";
  answer.body = body;
  return answer;
}

class HttpServerTest : public testing::Test {
 protected:
  void Serve() {
    auto server = HttpServer::Start(options_, [this](const HttpRequest& r) {
      ++requests_;
      std::string said = absl::StrCat(r.path, "?");
      for (const auto& [name, value] : r.query) {
        absl::StrAppend(&said, name, "=", value, ";");
      }
      return Page(said);
    });
    ASSERT_OK(server);
    server_ = *std::move(server);
    client_ = std::make_unique<httplib::Client>("127.0.0.1", server_->port());
  }
  std::string Exchange(const std::string& request) {
    Wire wire(server_->port());
    EXPECT_TRUE(wire.connected());
    wire.Send(request);
    return wire.ReadAll();
  }

  HttpOptions options_;
  std::atomic<int> requests_{0};
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_F(HttpServerTest, ServesWithHeadersThatKeepOtherSitesOut) {
  Serve();
  const auto got = client_->Get("/a%20b?x=1&y=%3D&x=2");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, 200);
  EXPECT_EQ(got->body, "/a b?x=2;y==;");
  EXPECT_EQ(got->get_header_value("Connection"), "close");
  EXPECT_EQ(got->get_header_value_count("Connection"), 1u);
  EXPECT_EQ(got->get_header_value("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(got->get_header_value("Cache-Control"), "no-store");
  EXPECT_THAT(got->get_header_value("Content-Security-Policy"),
              StartsWith("default-src 'self'"));
  EXPECT_FALSE(got->has_header("Access-Control-Allow-Origin"));
  EXPECT_EQ(got->get_header_value("Content-Type"), "text/plain; charset=utf-8");
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  Serve();
  const auto got = client_->Head("/page");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, 200);
  EXPECT_THAT(got->body, IsEmpty());
}

TEST_F(HttpServerTest, NothingCanBeChanged) {
  Serve();
  const std::string long_body(1 << 20, 'x');
  for (const auto& answer :
       {client_->Post("/page", "x", "text/plain"), client_->Put("/page"),
        client_->Delete("/page"), client_->Patch("/page"),
        client_->Options("/page")}) {
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 405);
    EXPECT_EQ(answer->get_header_value("Allow"), "GET, HEAD");
    EXPECT_THAT(answer->body, HasSubstr("\"message\""));
  }
  // A body is not read, whatever its length is declared to be.
  const std::string refused = Exchange(
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
      "\r\n");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 405"));
  EXPECT_EQ(requests_, 0);
}

TEST_F(HttpServerTest, OtherNamesAreRefused) {
  options_.hosts = {"status.example.org"};
  Serve();
  const auto status = [this](const std::string& host) {
    const auto got = client_->Get("/", {{"Host", host}});
    return got ? got->status : -1;
  };
  EXPECT_EQ(status("evil.example.org"), 421);
  EXPECT_EQ(status("localhost.evil.example.org"), 421);
  EXPECT_EQ(status("localhost:1234"), 200);
  EXPECT_EQ(status("[::1]:80"), 200);
  EXPECT_EQ(status("10.1.2.3"), 200);
  EXPECT_EQ(status("Status.Example.ORG:443"), 200);
  EXPECT_THAT(Exchange("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 421"));
}

TEST_F(HttpServerTest, LongRequestsAreRefused) {
  Serve();
  const auto target = client_->Get("/" + std::string(3000, 'a'));
  ASSERT_TRUE(target);
  EXPECT_EQ(target->status, 414);
  std::string headers = "GET / HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 400; ++i) {
    absl::StrAppend(&headers, "X-", i, ": ", std::string(100, 'x'), "\r\n");
  }
  EXPECT_THAT(Exchange(headers + "\r\n"), Not(StartsWith("HTTP/1.1 200")));
  EXPECT_THAT(Exchange(std::string(100'000, 'y')),
              Not(StartsWith("HTTP/1.1 200")));
  EXPECT_EQ(requests_, 0);
}

TEST_F(HttpServerTest, RangesAreNotServed) {
  Serve();
  std::string ranges = "bytes=0-";
  while (ranges.size() < 8000) ranges += ",0-";
  const auto got =
      client_->Get("/page", {{"Range", ranges}, {"Accept-Encoding", "br"}});
  ASSERT_TRUE(got);
  EXPECT_LT(got->body.size(), 1000u) << "the answer, or an error; never a "
                                        "thousand copies";
  EXPECT_FALSE(got->has_header("Content-Encoding"));
}

TEST_F(HttpServerTest, ASlowRequestEndsInTime) {
  options_.time_limit = absl::Milliseconds(200);
  Serve();
  // A byte now and then would be enough for a limit on each read.
  const std::string answer =
      Exchange("GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
  EXPECT_THAT(answer, Not(StartsWith("HTTP/1.1 200")));
  EXPECT_EQ(requests_, 0);
}

TEST_F(HttpServerTest, SlowRequestsDoNotKeepOthersOutForever) {
  options_.threads = 2;
  options_.max_waiting = 2;
  options_.time_limit = absl::Milliseconds(200);
  Serve();
  std::vector<std::unique_ptr<Wire>> slow;
  for (int i = 0; i < 12; ++i) {
    slow.push_back(std::make_unique<Wire>(server_->port()));
    slow.back()->Send("GET / HTTP/1.1\r\n");
  }
  client_->set_read_timeout(20);
  const auto got = client_->Get("/page");
  ASSERT_TRUE(got) << httplib::to_string(got.error());
  EXPECT_EQ(got->status, 200);
}

TEST_F(HttpServerTest, EndsWhileRequestsHang) {
  options_.time_limit = absl::Hours(1);
  Serve();
  Wire slow(server_->port());
  slow.Send("GET / HTTP/1.1\r\n");
  server_.reset();
  EXPECT_THAT(slow.ReadAll(), Not(StartsWith("HTTP/1.1 200")));
}

TEST_F(HttpServerTest, APortHasOneServer) {
  Serve();
  HttpOptions taken;
  taken.listen = absl::StrCat("127.0.0.1:", server_->port());
  const auto second =
      HttpServer::Start(taken, [](const HttpRequest&) { return HttpAnswer(); });
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr(taken.listen)));
}

TEST(HttpOptionsTest, LeavesTheLoopbackOnlyWhereThatIsConfigured) {
  HttpOptions options;
  options.listen = "0.0.0.0:0";
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("--insecure")));
  options.insecure = true;
  EXPECT_OK(options.Validate());
  options.listen = "nonsense";
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("nonsense")));
  options.listen = "127.0.0.1:0";
  options.threads = 0;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("threads")));
}

TEST(HostNamesTest, KnowsTheLoopback) {
  EXPECT_TRUE(IsLoopbackHost("127.0.0.1"));
  EXPECT_TRUE(IsLoopbackHost("127.8.8.8"));
  EXPECT_TRUE(IsLoopbackHost("::1"));
  EXPECT_TRUE(IsLoopbackHost("LocalHost"));
  EXPECT_FALSE(IsLoopbackHost("10.0.0.1"));
  EXPECT_FALSE(IsLoopbackHost(""));
  EXPECT_FALSE(IsLoopbackHost("127.evil.example.org"));
}

}  // namespace
}  // namespace coxswain::server
