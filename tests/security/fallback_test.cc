// The ranks of a job trust each other by their certificates while one of them
// is the fallback coordinator.
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/fallback/fallback_server.h"
#include "client/rpc/grpc_coordinator_stub.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/plan.h"
#include "tests/security/test_certificates.h"

namespace coxswain::fallback_test {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);

class FallbackTest : public testing::Test {
 protected:
  FallbackTest() : certificates_("fallback") {
    FallbackCoordinator::Options options;
    options.fence.set_job("a");
    options.fence.set_generation(7);
    options.world_size = 2;
    options.plan = []() { return schedule::Plan(); };
    coordinator_ = std::make_shared<FallbackCoordinator>(options);
  }

  ClientSecurity Of(const std::string& job) {
    return {certificates_.Job(job), "", false};
  }

  // OK once the rank is attached, else how its stream ended.
  absl::Status AttachTo(const std::string& address,
                        const ClientSecurity& security,
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
    const auto stub = MakeFallbackStub(address, security, believed);
    const auto stream = stub->Attach(callbacks);
    v1::AttachRequest request;
    request.mutable_hello()->set_rank(1);
    request.mutable_hello()->mutable_fence()->set_job("a");
    request.mutable_hello()->mutable_fence()->set_generation(7);
    stream->Send(request);
    MutexLock lock(&mutex);
    EXPECT_TRUE(changed.WaitFor(&mutex, kTimeout, [&]() { return over; }));
    return end;
  }

  TestCertificates certificates_;
  std::shared_ptr<FallbackCoordinator> coordinator_;
};

TEST_F(FallbackTest, MembersOfTheJobAreWelcomeAndOthersAreNot) {
  ASSERT_OK_AND_ASSIGN(
      const auto server,
      FallbackServer::Start("127.0.0.1", coordinator_, "a", Of("a")));
  EXPECT_OK(AttachTo(server->address(), Of("a"), "a"));
  EXPECT_THAT(
      AttachTo(server->address(), Of("b"), "a"),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("job a")));
  EXPECT_THAT(AttachTo(server->address(), {}, "a"),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST_F(FallbackTest, OneOfAnotherJobIsNotBelieved) {
  ASSERT_OK_AND_ASSIGN(
      const auto server,
      FallbackServer::Start("127.0.0.1", coordinator_, "a", Of("b")));
  EXPECT_THAT(AttachTo(server->address(), Of("a"), "a"),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST_F(FallbackTest, WithATokenAloneThereIsNoFallbackCoordinator) {
  ClientSecurity security;
  security.tls.ca = certificates_.Path("ca.crt");
  EXPECT_THAT(
      FallbackServer::Start("127.0.0.1", coordinator_, "a", security).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--tls-cert")));
  security.tls.ca.clear();
  security.token_file = certificates_.Path("token");
  EXPECT_THAT(
      FallbackServer::Start("127.0.0.1", coordinator_, "a", security).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--tls-ca")));
}

}  // namespace
}  // namespace coxswain::fallback_test
