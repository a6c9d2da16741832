// The ranks of a job trust each other by their certificates while one of them
// stands in for the coordinator.
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/grpc_coordinator_stub.h"
#include "client/stand_in/stand_in_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/plan.h"
#include "tests/security/test_certificates.h"

namespace coxswain::stand_in_test {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class StandInTest : public testing::Test {
 protected:
  StandInTest() : certificates_("stand-in") {
    StandInDesk::Options options;
    options.fence.set_job("a");
    options.fence.set_generation(7);
    options.world_size = 2;
    options.plan = []() { return schedule::Plan(); };
    desk_ = std::make_shared<StandInDesk>(options);
  }

  ClientSecurity Of(const std::string& job) {
    return {certificates_.Job(job), "", false};
  }

  // OK once the visitor is welcome, else how its stream ended.
  absl::Status Visit(const std::string& address, const ClientSecurity& security,
                     const std::string& believed) {
    Mutex mutex;
    CondVar changed;
    bool over = false;
    absl::Status end;
    const auto note = [&](const absl::Status& status) {
      MutexLock lock(&mutex);
      if (!over) end = status;
      over = true;
      changed.NotifyAll();
    };
    StreamCallbacks<v1::AttachEvent> callbacks;
    callbacks.on_event = [&](const v1::AttachEvent&) {
      note(absl::OkStatus());
    };
    callbacks.on_end = note;
    const auto stub = MakeStandInStub(address, security, believed);
    const auto stream = stub->Attach(callbacks);
    v1::AttachRequest request;
    request.mutable_hello()->set_rank(1);
    request.mutable_hello()->mutable_fence()->set_job("a");
    request.mutable_hello()->mutable_fence()->set_generation(7);
    stream->Send(request);
    MutexLock lock(&mutex);
    EXPECT_TRUE(changed.WaitFor(&mutex, kPatience, [&]() { return over; }));
    return end;
  }

  TestCertificates certificates_;
  std::shared_ptr<StandInDesk> desk_;
};

TEST_F(StandInTest, MembersOfTheJobAreWelcomeAndOthersAreNot) {
  ASSERT_OK_AND_ASSIGN(const auto server,
                       StandInServer::Start("127.0.0.1", desk_, "a", Of("a")));
  EXPECT_OK(Visit(server->address(), Of("a"), "a"));
  EXPECT_THAT(
      Visit(server->address(), Of("b"), "a"),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("job a")));
  EXPECT_THAT(Visit(server->address(), {}, "a"),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST_F(StandInTest, OneOfAnotherJobIsNotBelieved) {
  ASSERT_OK_AND_ASSIGN(const auto server,
                       StandInServer::Start("127.0.0.1", desk_, "a", Of("b")));
  EXPECT_THAT(Visit(server->address(), Of("a"), "a"),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST_F(StandInTest, WithATokenAloneNobodyStandsIn) {
  ClientSecurity security;
  security.tls.ca = certificates_.Path("ca.crt");
  EXPECT_THAT(
      StandInServer::Start("127.0.0.1", desk_, "a", security).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--tls-cert")));
  security.tls.ca.clear();
  security.token_file = certificates_.Path("token");
  EXPECT_THAT(
      StandInServer::Start("127.0.0.1", desk_, "a", security).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--tls-ca")));
}

}  // namespace
}  // namespace coxswain::stand_in_test
