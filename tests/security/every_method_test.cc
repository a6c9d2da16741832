// Walks over all methods of all services, as the server itself lists them: a
// method that is added is looked at here without a word.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "proto/journal.pb.h"
#include "proto/rendezvous.pb.h"
#include "server/coordinator.h"
#include "tests/security/call_by_name.h"
#include "tests/security/test_certificates.h"

namespace coxswain::every_method_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr char kDescribe[] = "/coxswain.v1.Rendezvous/Describe";
// Without a job these answer with what the caller may see.
const std::set<std::string> kCutDown = {kDescribe, "/coxswain.v1.Journal/Read",
                                        "/coxswain.v1.Journal/Follow"};
constexpr absl::Duration kTimeout = absl::Seconds(20);
// For calls that may wait by right, as Join does.
constexpr absl::Duration kShort = absl::Milliseconds(500);
constexpr char kTokens[] =
    "job/a a-token-of-job-a-123\njob/b a-token-of-job-b-123\n"
    "operator the-token-of-operators\n";

bool IsRefusal(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
}

// The caller: by certificate, or by token in plain text over the loopback.
class EveryMethodTest : public testing::TestWithParam<bool> {
 protected:
  EveryMethodTest()
      : certificates_(absl::StrCat(
            "every-method-", GetParam() ? "tokens-" : "certificates-",
            testing::UnitTest::GetInstance()->current_test_info()->line())) {
    server::CoordinatorOptions options;
    options.state_dir = certificates_.Path("state");
    if (by_token()) {
      options.security.tokens = certificates_.Write("tokens", kTokens);
    } else {
      options.security.tls = certificates_.Coordinator();
    }
    coordinator_ = server::Coordinator::Start(options).value();
  }

  static bool by_token() { return GetParam(); }

  std::shared_ptr<grpc::Channel> Channel(const TlsFiles& files) {
    const std::string address =
        absl::StrCat("127.0.0.1:", coordinator_->port());
    if (by_token()) {
      return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    }
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
            files.key, files.cert, files.ca, 1));
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    return grpc::CreateChannel(address,
                               grpc::experimental::TlsCredentials(options));
  }
  struct Caller {
    std::shared_ptr<grpc::Channel> channel;
    std::string token;
  };
  Caller Job(const std::string& job) {
    return {Channel(certificates_.Job(job)),
            by_token() ? absl::StrCat("a-token-of-job-", job, "-123") : ""};
  }
  Caller Operator() {
    return {Channel(certificates_.Operator()),
            by_token() ? "the-token-of-operators" : ""};
  }
  static CallResult Call(const Caller& caller, const std::string& method,
                         const std::string& message, absl::Duration timeout) {
    return CallByName(caller.channel, method, message, timeout, caller.token);
  }
  static std::vector<std::string> Methods(const Caller& caller) {
    return AllMethods(caller.channel, caller.token);
  }

  TestCertificates certificates_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

TEST_P(EveryMethodTest, TheWalkSeesAllKindsOfMethods) {
  const auto methods = Methods(Operator());
  EXPECT_GE(methods.size(), 32);
  for (const char* const one :
       {"Rendezvous/Attach", "Schedule/Why", "Store/Watch", "Group/Barrier",
        "Checkpoint/Upload", "Parameter/Exchange"}) {
    EXPECT_THAT(methods, Contains(absl::StrCat("/coxswain.v1.", one)));
  }
}

TEST_P(EveryMethodTest, OneJobCannotTouchAnother) {
  const Caller a = Job("a");
  for (const std::string& method : Methods(a)) {
    const auto request = RequestAbout(method, "b");
    ASSERT_NE(request->ByteSizeLong(), 0)
        << method << " does not name its job: see auth_interceptor";
    const CallResult result =
        Call(a, method, request->SerializeAsString(), kTimeout);
    EXPECT_THAT(result.status,
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(HasSubstr("job a"), HasSubstr("job b"),
                               HasSubstr("Use a certificate or token"))))
        << method;
    EXPECT_EQ(result.answer, "") << method;
  }
  // Nothing has come of all that.
  v1::DescribeResponse jobs;
  ASSERT_TRUE(
      jobs.ParseFromString(Call(Operator(), kDescribe, "", kTimeout).answer));
  EXPECT_EQ(jobs.jobs_size(), 0) << jobs.DebugString();
}

TEST_P(EveryMethodTest, ARequestAboutNoJobIsRefused) {
  const Caller a = Job("a");
  for (const std::string& method : Methods(a)) {
    if (kCutDown.count(method) > 0) continue;
    EXPECT_THAT(Call(a, method, "", kTimeout).status,
                StatusIs(absl::StatusCode::kPermissionDenied,
                         HasSubstr("does not say for which job")))
        << method;
  }
}

TEST_P(EveryMethodTest, AJobMaySpeakOfItselfAndAnOperatorOfAll) {
  for (const Caller& caller : {Job("a"), Operator()}) {
    for (const std::string& method : Methods(caller)) {
      const std::string request =
          RequestAbout(method, "a")->SerializeAsString();
      const CallResult result = Call(caller, method, request, kShort);
      EXPECT_FALSE(IsRefusal(result.status)) << method << " " << result.status;
    }
  }
}

TEST_P(EveryMethodTest, AnUnknownCallerIsRefused) {
  const std::vector<std::string> methods = Methods(Operator());
  // A certificate without a role, or an unknown token.
  const Caller unknown = {
      Channel(certificates_.Issue("nobody", "https://example.com/")),
      by_token() ? "a-token-that-is-wrong" : ""};
  for (const std::string& method : methods) {
    const std::string request = RequestAbout(method, "a")->SerializeAsString();
    const CallResult result = Call(unknown, method, request, kTimeout);
    EXPECT_THAT(result.status,
                StatusIs(absl::StatusCode::kUnauthenticated, testing::_))
        << method;
    EXPECT_EQ(result.answer, "") << method;
  }
  EXPECT_EQ(Methods(unknown).size(), 0);
  // But for whether the coordinator is well.
  EXPECT_OK(Call(unknown, "/grpc.health.v1.Health/Check", "", kTimeout).status);
}

TEST_P(EveryMethodTest, WithoutANameAJobSeesItselfAlone) {
  const Caller a = Job("a");
  const Caller b = Job("b");
  for (const Caller& caller : {a, b}) {
    v1::JoinRequest join;
    join.set_job(caller.channel == a.channel ? "a" : "b");
    join.mutable_identity()->set_node("n");
    join.set_incarnation(1);
    join.set_host("here");
    join.set_address("127.0.0.1");
    join.mutable_manifest()->set_world_size(1);
    join.mutable_manifest()->set_hook("allreduce");
    join.mutable_manifest()->set_accumulation_steps(1);
    join.set_timeout_ms(20'000);
    EXPECT_OK(Call(caller, "/coxswain.v1.Rendezvous/Join",
                   join.SerializeAsString(), kTimeout)
                  .status);
  }
  const auto jobs_of = [](const Caller& caller) {
    v1::DescribeResponse response;
    EXPECT_TRUE(
        response.ParseFromString(Call(caller, kDescribe, "", kTimeout).answer));
    EXPECT_NE(response.cluster_id(), "");
    std::string jobs;
    for (const auto& job : response.jobs()) absl::StrAppend(&jobs, job.job());
    return jobs;
  };
  EXPECT_EQ(jobs_of(a), "a");
  EXPECT_EQ(jobs_of(b), "b");
  EXPECT_EQ(jobs_of(Operator()), "ab");

  // The events of the other jobs are not returned either.
  v1::JournalPage page;
  ASSERT_TRUE(page.ParseFromString(
      Call(a, "/coxswain.v1.Journal/Read", "", kTimeout).answer));
  for (const auto& event : page.events()) EXPECT_EQ(event.job(), "a");
}

INSTANTIATE_TEST_SUITE_P(Credentials, EveryMethodTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "ByToken" : "ByCertificate";
                         });

}  // namespace
}  // namespace coxswain::every_method_test
