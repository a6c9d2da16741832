// The port for probes: health in plain text, and nothing else.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/health_server.h"
#include "tests/security/call_by_name.h"

namespace coxswain {
namespace {

using server::HealthServer;

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
// HealthCheckResponse{status: SERVING} and NOT_SERVING
constexpr char kServing[] = "\x08\x01";
constexpr char kNotServing[] = "\x08\x02";

class HealthTest : public testing::Test {
 protected:
  HealthTest() : health_(HealthServer::Start("127.0.0.1:0").value()) {
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", health_->port()),
                                   grpc::InsecureChannelCredentials());
  }
  CallResult Check(const std::string& service) {
    std::string request;
    if (!service.empty()) {
      request = absl::StrCat("\x0a", std::string(1, service.size()), service);
    }
    return CallByName(channel_, kCheck, request, kPatience);
  }

  std::unique_ptr<HealthServer> health_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(HealthTest, IsAliveFromTheBeginningAndReadyWhenItIsSaid) {
  EXPECT_EQ(Check("").answer, kServing);
  EXPECT_EQ(Check("liveness").answer, kServing);
  EXPECT_EQ(Check("readiness").answer, kNotServing);
  EXPECT_EQ(Check("availability").answer, kNotServing);
  health_->Set(HealthServer::State::kLeads);
  EXPECT_EQ(Check("readiness").answer, kServing);
  EXPECT_EQ(Check("availability").answer, kServing);
  health_->Set(HealthServer::State::kNeither);
  EXPECT_EQ(Check("readiness").answer, kNotServing);
  EXPECT_EQ(Check("availability").answer, kNotServing);
  EXPECT_EQ(Check("liveness").answer, kServing);
  EXPECT_THAT(Check("other").status,
              StatusIs(absl::StatusCode::kNotFound, testing::_));
}

// Connections of gRPC's own, which are kept: past the bound the oldest ends.
TEST_F(HealthTest, ProbesAreAnsweredHoweverManyConnectionsThereAre) {
  std::vector<std::shared_ptr<grpc::Channel>> others;
  for (int i = 0; i < 100; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    others.push_back(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", health_->port()),
        grpc::InsecureChannelCredentials(), arguments));
    ASSERT_EQ(CallByName(others.back(), kCheck, "", kPatience).answer, kServing)
        << i;
  }
  EXPECT_EQ(Check("").answer, kServing);
}

TEST_F(HealthTest, OneThatStandsByIsAvailableAndNotReady) {
  health_->Set(HealthServer::State::kStandsBy);
  EXPECT_EQ(Check("liveness").answer, kServing);
  EXPECT_EQ(Check("readiness").answer, kNotServing);
  EXPECT_EQ(Check("availability").answer, kServing);
}

TEST_F(HealthTest, ThereIsNothingElse) {
  for (const char* const method :
       {"/coxswain.v1.Rendezvous/Describe",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    EXPECT_THAT(CallByName(channel_, method, "", kPatience).status,
                StatusIs(absl::StatusCode::kUnimplemented, testing::_));
  }
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
