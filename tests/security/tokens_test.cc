// Bearer tokens, over plain text on loopback and over TLS.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/logging.h"
#include "base/status_matchers.h"
#include "client/rpc/stub_factory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/security/test_certificates.h"

namespace coxswain::tokens_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr char kFirst[] = "the-first-token-of-a";
constexpr char kSecond[] = "the-second-token-of-a";

class TokensTest : public testing::Test {
 protected:
  TokensTest()
      : files_(absl::StrCat(
            "tokens-",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {}

  std::string WriteTokens(const std::string& text) {
    return files_.Write("tokens", text);
  }
  void Serve(const TlsFiles& tls, const std::string& tokens) {
    server::CoordinatorOptions options;
    options.state_dir = files_.Path("state");
    options.security.tls = tls;
    options.security.tokens = WriteTokens(tokens);
    ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(options));
  }
  std::shared_ptr<CoordinatorStub> Connect(const std::string& token,
                                           const std::string& ca = "") {
    ClientSecurity security;
    security.tls.ca = ca;
    if (!token.empty()) security.token_file = files_.Write("token", token);
    return ConnectCoordinator(absl::StrCat("127.0.0.1:", coordinator_->port()),
                              RetryPolicy(), security);
  }
  static absl::Status Ask(CoordinatorStub& stub, const std::string& job = "a") {
    CallOptions options;
    options.timeout = kTimeout;
    v1::GetPlanRequest request;
    request.set_job(job);
    return stub.GetPlan(request, options).status();
  }

  TestCertificates files_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

// The answer to an accepted caller: there is no such job yet.
const auto IsLetIn = StatusIs(absl::StatusCode::kNotFound, testing::_);

TEST_F(TokensTest, ATokenStandsForItsJob) {
  Serve({}, absl::StrCat("# of the night shift\njob/a ", kFirst, "\n"));
  EXPECT_THAT(Ask(*Connect(absl::StrCat(kFirst, "\n"))), IsLetIn);
  EXPECT_THAT(Ask(*Connect(kFirst), "b"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("job a"), HasSubstr("job b"),
                             HasSubstr("Schedule.GetPlan"))));
  EXPECT_THAT(
      Ask(*Connect(kSecond)),
      StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("--token-file")));
  EXPECT_THAT(Ask(*Connect("")), StatusIs(absl::StatusCode::kUnauthenticated,
                                          HasSubstr("--token-file")));
}

// However much else was logged before, of others and of the same peer.
TEST_F(TokensTest, ARefusedTokenIsLoggedWhateverWasLoggedBefore) {
  Serve({}, absl::StrCat("job/a ", kFirst));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5000; ++i) {
    LogWarningOnce(absl::StrCat("key-", i), "something_else");
  }
  testing::internal::GetCapturedStderr();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT(Ask(*Connect(kFirst), absl::StrCat("b-", i)),
                StatusIs(absl::StatusCode::kPermissionDenied, testing::_));
  }
  EXPECT_THAT(Ask(*Connect(kSecond)),
              StatusIs(absl::StatusCode::kUnauthenticated, testing::_));
  const std::vector<std::string> lines = absl::StrSplit(
      testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr(" W call_refused "),
                                    HasSubstr("--token-file"))));
  // One line for a peer and what is wrong with it, in a minute.
  EXPECT_LT(lines.size(), 10u);
}

TEST_F(TokensTest, TlsCarriesThemWithoutACertificateOfTheClient) {
  const TlsFiles tls = files_.Coordinator();
  Serve({tls.cert, tls.key, ""}, absl::StrCat("job/a ", kFirst));
  EXPECT_THAT(Ask(*Connect(kFirst, tls.ca)), IsLetIn);
  EXPECT_THAT(Ask(*Connect(kSecond, tls.ca)),
              StatusIs(absl::StatusCode::kUnauthenticated, testing::_));
}

TEST_F(TokensTest, CertificatesAndTokensCountSideBySide) {
  Serve(files_.Coordinator(), absl::StrCat("job/a ", kFirst));
  EXPECT_THAT(Ask(*Connect(kFirst, files_.Path("ca.crt"))), IsLetIn);
  ClientSecurity security;
  security.tls = files_.Job("b");
  const auto stub =
      ConnectCoordinator(absl::StrCat("127.0.0.1:", coordinator_->port()),
                         RetryPolicy(), security);
  EXPECT_THAT(Ask(*stub, "b"), IsLetIn);
  EXPECT_THAT(Ask(*stub, "a"),
              StatusIs(absl::StatusCode::kPermissionDenied, testing::_));
}

TEST_F(TokensTest, BothEndsReadTheirFilesAgain) {
  Serve({}, absl::StrCat("job/a ", kFirst));
  const auto stub = Connect(kFirst);
  ASSERT_THAT(Ask(*stub), IsLetIn);
  WriteTokens(absl::StrCat("job/a ", kSecond));
  EXPECT_THAT(Ask(*stub),
              StatusIs(absl::StatusCode::kUnauthenticated, testing::_));
  files_.Write("token", kSecond);
  EXPECT_THAT(Ask(*stub), IsLetIn);
  // What cannot be understood changes nothing.
  WriteTokens("what is this\n");
  EXPECT_THAT(Ask(*stub), IsLetIn);
}

TEST_F(TokensTest, AFileThatCannotBeUnderstoodIsAnErrorThatShowsNoToken) {
  server::SecurityOptions security;
  const std::string token = "a-token-that-is-secret";
  const std::pair<std::string, std::string> cases[] = {
      {token + " job/a", "line 1: a line begins with operator or job/NAME"},
      {"\njob/a " + token + " b", "line 2"},
      {"job/a short", "16 to 4096"},
      {"job/a/b " + token, "line 1"},
      {absl::StrCat("job/a ", token, "\njob/b ", token), "line 2: this token"}};
  for (const auto& [text, what] : cases) {
    security.tokens = WriteTokens(text);
    EXPECT_THAT(security.Validate(absl::UnixEpoch()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(security.tokens), HasSubstr(what),
                               Not(HasSubstr(token)))));
  }
  security.tokens = files_.Path("absent");
  EXPECT_THAT(
      security.Validate(absl::UnixEpoch()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("absent")));
}

TEST_F(TokensTest, ATokenIsNotSentOverANetworkInPlainText) {
  // Not recognisable as the loopback, but an address of this machine.
  Serve({}, absl::StrCat("job/a ", kFirst));
  const std::string file = files_.Write("token", kFirst);
  const std::string address =
      absl::StrCat("[::ffff:127.0.0.1]:", coordinator_->port());
  EXPECT_THAT(
      Ask(*ConnectCoordinator(address, RetryPolicy(), {{}, file, false})),
      StatusIs(absl::StatusCode::kUnauthenticated, testing::_));
  EXPECT_THAT(
      Ask(*ConnectCoordinator(address, RetryPolicy(), {{}, file, true})),
      IsLetIn);
}

}  // namespace
}  // namespace coxswain::tokens_test
