// The port for probes: health over plain HTTP, and nothing else.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "server/http/health_server.h"

namespace coxswain {
namespace {

using server::HealthServer;

constexpr int kServed = 200;
constexpr int kNotServed = 503;

class HealthTest : public testing::Test {
 protected:
  HealthTest() : health_(HealthServer::Start("127.0.0.1:0").value()) {}

  // Returns the status of the answer; 0: none came.
  int Get(const std::string& path) {
    const auto result = client().Get(path.c_str());
    return result ? result->status : 0;
  }
  httplib::Client client() {
    httplib::Client client("127.0.0.1", health_->port());
    client.set_read_timeout(20);
    return client;
  }
  // Returns a connection that has sent these bytes.
  UniqueFd Connect(const std::string& bytes) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(health_->port()));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return fd;
  }

  std::unique_ptr<HealthServer> health_;
};

TEST_F(HealthTest, IsAliveFromTheBeginningAndReadyOnceItIsSet) {
  EXPECT_EQ(Get("/liveness"), kServed);
  EXPECT_EQ(Get("/readiness"), kNotServed);
  EXPECT_EQ(Get("/availability"), kNotServed);
  health_->Set(HealthServer::State::kLeads);
  EXPECT_EQ(Get("/readiness"), kServed);
  EXPECT_EQ(Get("/availability"), kServed);
  health_->Set(HealthServer::State::kNeither);
  EXPECT_EQ(Get("/readiness"), kNotServed);
  EXPECT_EQ(Get("/availability"), kNotServed);
  EXPECT_EQ(Get("/liveness"), kServed);
}

// More connections than wait at once, of which none sends a whole request.
TEST_F(HealthTest, ProbesAreAnsweredHoweverManyConnectionsThereAre) {
  std::vector<UniqueFd> others;
  for (int i = 0; i < 300; ++i) {
    others.push_back(Connect(i % 2 == 0 ? "" : "GET /liveness HTTP/1.1\r\n"));
  }
  EXPECT_EQ(Get("/liveness"), kServed);
}

TEST_F(HealthTest, OneThatStandsByIsAvailableAndNotReady) {
  health_->Set(HealthServer::State::kStandsBy);
  EXPECT_EQ(Get("/liveness"), kServed);
  EXPECT_EQ(Get("/readiness"), kNotServed);
  EXPECT_EQ(Get("/availability"), kServed);
}

TEST_F(HealthTest, ThereIsNothingElse) {
  for (const char* const path : {"/", "/metrics", "/api/v1/jobs", "/healthz"}) {
    EXPECT_EQ(Get(path), 404) << path;
  }
  EXPECT_EQ(client().Post("/liveness", "x", "text/plain")->status, 405);
  EXPECT_EQ(Get(absl::StrCat("/", std::string(4000, 'x'))), 0);
  EXPECT_EQ(Get("/liveness"), kServed);
}

TEST_F(HealthTest, APortThatIsTakenIsAnError) {
  const std::string address = absl::StrCat("127.0.0.1:", health_->port());
  EXPECT_THAT(
      HealthServer::Start(address).status(),
      StatusIs(absl::StatusCode::kUnavailable, testing::HasSubstr(address)));
  EXPECT_THAT(HealthServer::Start("here").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

}  // namespace
}  // namespace coxswain
