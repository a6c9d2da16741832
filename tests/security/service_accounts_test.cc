// Tokens that an issuer signs, as a cluster of Kubernetes does for its service
// accounts, over gRPC.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/public_key.h"
#include "base/status_matchers.h"
#include "client/rpc/stub_factory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/rendezvous.pb.h"
#include "server/coordinator.h"
#include "tests/security/test_certificates.h"
#include "tests/security/test_issuer.h"

namespace coxswain::service_accounts_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr char kTrain[] = "system:serviceaccount:space:train";
constexpr char kStranger[] = "system:serviceaccount:space:stranger";
constexpr char kTokens[] =
    "# who is who\n"
    "job/a subject:system:serviceaccount:space:train\n"
    "operator subject:system:serviceaccount:space:boss\n"
    "job/b the-secret-of-job-b-123\n";

// Time goes on by itself but for the date, which the test sets.
class Calendar : public Clock {
 public:
  absl::Time Now() const override { return Clock::Real()->Now(); }
  absl::Time WallTime() const override {
    MutexLock lock(&mutex_);
    return date_;
  }
  void Advance(absl::Duration duration) {
    MutexLock lock(&mutex_);
    date_ += duration;
  }

 private:
  mutable Mutex mutex_;
  absl::Time date_ ABSL_GUARDED_BY(mutex_) = Clock::Real()->WallTime();
};

class ServiceAccountsTest : public testing::Test {
 protected:
  ServiceAccountsTest()
      : files_(absl::StrCat(
            "service-accounts-",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {}

  server::SecurityOptions Security() const {
    server::SecurityOptions security;
    security.tokens = files_.Write("tokens", kTokens);
    security.token_keys = files_.Write("jwks.json", KeySetOf({issuer_.Key()}));
    security.token_rules.issuer = TestIssuer::kName;
    return security;
  }
  void Serve(const server::SecurityOptions& security) {
    server::CoordinatorOptions options;
    options.state_dir = files_.Path("state");
    options.security = security;
    options.clock = &calendar_;
    ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(options));
  }
  // Puts it into the file that stubs read their token from.
  void Show(const std::string& token) const { files_.Write("token", token); }
  std::string TokenOf(const std::string& subject) const {
    return issuer_.Sign(TestIssuer::Claims(subject, calendar_.WallTime()));
  }
  std::shared_ptr<CoordinatorStub> Connect(const std::string& ca = "") const {
    ClientSecurity security;
    security.tls.ca = ca;
    security.token_file = files_.Path("token");
    return ConnectCoordinator(absl::StrCat("127.0.0.1:", coordinator_->port()),
                              RetryPolicy(), security);
  }
  static absl::Status Join(CoordinatorStub& stub, const std::string& job) {
    v1::JoinRequest join;
    join.set_job(job);
    join.mutable_identity()->set_node("n");
    join.set_incarnation(1);
    join.set_host("here");
    join.set_address("127.0.0.1");
    join.mutable_manifest()->set_world_size(1);
    join.mutable_manifest()->set_hook("allreduce");
    join.mutable_manifest()->set_accumulation_steps(1);
    join.set_timeout_ms(20'000);
    return stub.Join(join, WithTimeoutsRestarted()).status();
  }
  static absl::Status Ask(CoordinatorStub& stub) {
    return stub.Describe({}, WithTimeoutsRestarted()).status();
  }
  static CallOptions WithTimeoutsRestarted() {
    CallOptions options;
    options.timeout = kTimeout;
    return options;
  }
  static auto IsRefused(const std::string& why) {
    return StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr(why));
  }

  TestCertificates files_;
  Calendar calendar_;
  const TestIssuer issuer_{SignatureKind::kRs256};
  std::unique_ptr<server::Coordinator> coordinator_;
};

TEST_F(ServiceAccountsTest, AnAccountIsTheJobThatItsSubjectIsBoundTo) {
  Serve(Security());
  Show(TokenOf(kTrain));
  const auto stub = Connect();
  EXPECT_OK(Join(*stub, "a"));
  EXPECT_THAT(
      Join(*stub, "b"),
      StatusIs(absl::StatusCode::kPermissionDenied,
               AllOf(HasSubstr(absl::StrCat("job a (by a token of ", kTrain)),
                     HasSubstr("job b"), HasSubstr("Rendezvous.Join"))));
  // Tokens of the other kind count beside it.
  Show("the-secret-of-job-b-123");
  EXPECT_OK(Join(*stub, "b"));
  Show(TokenOf("system:serviceaccount:space:boss"));
  ASSERT_OK_AND_ASSIGN(const auto jobs,
                       stub->Describe({}, WithTimeoutsRestarted()));
  EXPECT_EQ(jobs.jobs_size(), 2);
}

TEST_F(ServiceAccountsTest, OverTlsTheClientNeedsNoCertificate) {
  const TlsFiles tls = files_.Coordinator();
  server::SecurityOptions security = Security();
  security.tls = {tls.cert, tls.key, ""};
  Serve(security);
  Show(TokenOf(kTrain));
  EXPECT_OK(Join(*Connect(tls.ca), "a"));
}

TEST_F(ServiceAccountsTest, ASubjectWithoutALineIsRefusedWithTheMissingLine) {
  Serve(Security());
  const std::string token = TokenOf(kStranger);
  Show(token);
  const auto stub = Connect();
  EXPECT_THAT(Ask(*stub),
              StatusIs(absl::StatusCode::kUnauthenticated,
                       AllOf(HasSubstr(absl::StrCat("subject:", kStranger)),
                             HasSubstr("--tokens"),
                             Not(HasSubstr(token.substr(0, 20))))));
  files_.Write("tokens", absl::StrCat("job/c subject:", kStranger));
  EXPECT_OK(Join(*stub, "c"));
  Show(TokenOf(kTrain));
  EXPECT_THAT(Ask(*stub), IsRefused(kTrain));
}

TEST_F(ServiceAccountsTest, ATokenRunsOutAndItsSuccessorTakesItsPlace) {
  Serve(Security());
  const std::string first = TokenOf(kTrain);
  Show(first);
  const auto stub = Connect();
  EXPECT_OK(Ask(*stub));
  calendar_.Advance(absl::Minutes(50));
  const std::string second = TokenOf(kTrain);
  calendar_.Advance(absl::Minutes(11));
  EXPECT_THAT(Ask(*stub), IsRefused("expired"));
  Show(second);
  EXPECT_OK(Ask(*stub));
  Show(issuer_.Sign(
      TestIssuer::Claims(kTrain, calendar_.WallTime() + absl::Minutes(1))));
  EXPECT_THAT(Ask(*stub), IsRefused("only from"));
}

TEST_F(ServiceAccountsTest, ForAnotherAudienceOrOfAnotherIssuerItIsRefused) {
  Serve(Security());
  const auto stub = Connect();
  Json claims = TestIssuer::Claims(kTrain, calendar_.WallTime());
  claims["aud"] = {"https://kubernetes.default.svc"};
  Show(issuer_.Sign(claims));
  EXPECT_THAT(Ask(*stub), IsRefused("https://kubernetes.default.svc"));
  claims = TestIssuer::Claims(kTrain, calendar_.WallTime());
  claims["iss"] = "https://other.example";
  Show(issuer_.Sign(claims));
  EXPECT_THAT(Ask(*stub), IsRefused("https://other.example"));
  const TestIssuer forger(SignatureKind::kRs256);
  Show(forger.Sign(TestIssuer::Claims(kTrain, calendar_.WallTime())));
  EXPECT_THAT(Ask(*stub), IsRefused("signature"));
}

TEST_F(ServiceAccountsTest, NewKeysCountWithoutARestart) {
  Serve(Security());
  Show(TokenOf(kTrain));
  const auto stub = Connect();
  EXPECT_OK(Ask(*stub));
  const TestIssuer next(SignatureKind::kEs256, "k2");
  files_.Write("jwks.json", KeySetOf({next.Key()}));
  EXPECT_THAT(Ask(*stub), IsRefused("--token-keys"));
  Show(next.Sign(TestIssuer::Claims(kTrain, calendar_.WallTime())));
  EXPECT_OK(Ask(*stub));
  files_.Write("jwks.json", "no keys");
  EXPECT_OK(Ask(*stub));
}

TEST_F(ServiceAccountsTest, WithoutKeysNoSignatureCounts) {
  server::SecurityOptions security;
  security.tokens = files_.Write("tokens", "job/b the-secret-of-job-b-123");
  Serve(security);
  Show(TokenOf(kTrain));
  EXPECT_THAT(Ask(*Connect()), IsRefused("none of this coordinator's"));
}

TEST_F(ServiceAccountsTest, SettingsThatDoNotFitAreAnErrorAtOnce) {
  using Options = server::SecurityOptions;
  const std::pair<void (*)(Options*), std::string> cases[] = {
      {[](Options* o) { o->token_rules.issuer = ""; }, "--token-issuer"},
      {[](Options* o) { o->token_rules.audience = ""; }, "--token-audience"},
      {[](Options* o) { o->tokens = ""; }, "subject:SUBJECT"},
      {[](Options* o) { o->token_keys += ".absent"; }, "jwks.json.absent"},
      {[](Options* o) { o->token_keys = o->tokens; }, "JSON Web Key Set"},
      {[](Options* o) { o->token_keys = ""; }, "without --token-keys"},
      {[](Options* o) { o->token_keys = o->token_rules.issuer = ""; },
       "names subjects"}};
  EXPECT_OK(Security().Validate(calendar_.WallTime()));
  for (const auto& [change, what] : cases) {
    Options security = Security();
    change(&security);
    EXPECT_THAT(security.Validate(calendar_.WallTime()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  }
}

TEST_F(ServiceAccountsTest, LinesThatBindNothingAreAnError) {
  server::SecurityOptions security = Security();
  const std::pair<std::string, std::string> cases[] = {
      {"job/a subject:", "line 1: after subject:"},
      {absl::StrCat("job/a subject:", std::string(513, 'x')), "1 to 512"},
      {"job/a subject:\xc3\xa4", "ASCII"},
      {"job/a subject:x\njob/b subject:x", "line 2: this subject"},
      {"job/a subject: x", "line 1"}};
  for (const auto& [text, what] : cases) {
    files_.Write("tokens", text);
    EXPECT_THAT(security.Validate(calendar_.WallTime()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  }
  files_.Write("tokens", "job/a subject:x\njob/a subject:y\n");
  EXPECT_OK(security.Validate(calendar_.WallTime()));
}

}  // namespace
}  // namespace coxswain::service_accounts_test
