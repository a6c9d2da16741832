// A whole job, as real processes: `coxswain certs init`, then what it prints.
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/public_key.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/security/test_certificates.h"
#include "tests/security/test_issuer.h"
#include "tests/support/process.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kCoxswain[] = "cli/coxswain";
constexpr absl::Duration kTimeout = absl::Seconds(120);

class SecureJobTest : public testing::Test {
 protected:
  SecureJobTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/secure-job-",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {}

  static std::unique_ptr<Process> Start(
      std::vector<std::string> arguments,
      const std::map<std::string, std::string>& environment = {}) {
    arguments.insert(arguments.begin(), kCoxswain);
    return Process::Start({std::move(arguments), environment}).value();
  }
  static int Finish(Process& process) {
    const auto exit = process.Wait(kTimeout);
    EXPECT_OK(exit);
    return exit.ok() ? exit->Status() : -1;
  }
  std::string Path(const std::string& file) const {
    return absl::StrCat(folder_, "/", file);
  }
  void MakeCertificates() {
    const auto certs =
        Start({"certs", "init", "--dir", folder_, "--job", "a", "--job", "b"});
    ASSERT_EQ(Finish(*certs), 0) << certs->err();
  }
  void Serve() {
    ServeWith({"--tls-cert", Path("coordinator.crt"), "--tls-key",
               Path("coordinator.key"), "--tls-ca", Path("ca.crt")});
  }
  void ServeWith(const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"serve", "--listen", "127.0.0.1:0",
                                      "--state-dir", Path("state")};
    words.insert(words.end(), flags.begin(), flags.end());
    server_ = Start(std::move(words));
    ASSERT_OK(server_->WaitForStdout("\n", kTimeout));
    const std::string line = server_->out();
    address_ = line.substr(line.find("127.0.0.1:"));
    address_.pop_back();
  }
  // As COXSWAIN_* variables, for the launcher and what it starts.
  std::map<std::string, std::string> As(const std::string& name) const {
    return {{"COXSWAIN_COORDINATOR", address_},
            {"COXSWAIN_TLS_CERT", Path(name + ".crt")},
            {"COXSWAIN_TLS_KEY", Path(name + ".key")},
            {"COXSWAIN_TLS_CA", Path("ca.crt")}};
  }

  const std::string folder_;
  std::unique_ptr<Process> server_;
  std::string address_;
};

TEST_F(SecureJobTest, TrainsWithCertificatesOfItsOwn) {
  MakeCertificates();
  Serve();
  const auto run =
      Start({"run", "--job", "a", "--nproc", "2", "--no-prefix", "--tls-cert",
             Path("job-a.crt"), "--tls-key", Path("job-a.key"), "--tls-ca",
             Path("ca.crt"), "--coordinator", address_, "--",
             "examples/minimal/minimal"});
  EXPECT_EQ(Finish(*run), 0) << run->err();
  EXPECT_THAT(run->out(), HasSubstr("100 ")) << run->err();

  // Another job's certificate, and the operator's, look at what was.
  const auto status = Start({"status", "--job", "a"}, As("operator"));
  EXPECT_EQ(Finish(*status), 0) << status->err();
  const auto plan = Start({"plan", "show", "a"}, As("job-a"));
  EXPECT_EQ(Finish(*plan), 0) << plan->err();
  const auto other = Start({"plan", "show", "a"}, As("job-b"));
  EXPECT_EQ(Finish(*other), 1);
  EXPECT_THAT(other->err(), AllOf(HasSubstr("job b"), HasSubstr("job a"),
                                  HasSubstr("certificate")));
  const auto all = Start({"status"}, As("job-b"));
  EXPECT_EQ(Finish(*all), 0) << all->err();
  EXPECT_THAT(all->out(), HasSubstr("0 jobs"));

  server_->Signal(SIGTERM);
  EXPECT_EQ(Finish(*server_), 0);
}

TEST_F(SecureJobTest, TrainsWithTokensThatAnIssuerHasSigned) {
  // Returns the folder of the fixture.
  TestCertificates files(absl::StrCat(
      "secure-job-",
      testing::UnitTest::GetInstance()->current_test_info()->name()));
  const TlsFiles tls = files.Coordinator();
  const TestIssuer issuer(SignatureKind::kRs256);
  ServeWith({"--tls-cert", tls.cert, "--tls-key", tls.key, "--tokens",
             files.Write("tokens", "job/a subject:train\njob/b subject:b\n"),
             "--token-keys", files.Write("jwks.json", KeySetOf({issuer.Key()})),
             "--token-issuer", TestIssuer::kName});
  const auto token_of = [&](const std::string& subject) {
    return files.Write(subject, issuer.Sign(TestIssuer::Claims(
                                    subject, Clock::Real()->WallTime())));
  };
  const auto run =
      Start({"run", "--job", "a", "--nproc", "2", "--no-prefix", "--token-file",
             token_of("train"), "--tls-ca", tls.ca, "--coordinator", address_,
             "--", "examples/minimal/minimal"});
  EXPECT_EQ(Finish(*run), 0) << run->err();
  EXPECT_THAT(run->out(), HasSubstr("100 ")) << run->err();
  const auto other =
      Start({"plan", "show", "a"}, {{"COXSWAIN_COORDINATOR", address_},
                                    {"COXSWAIN_TOKEN_FILE", token_of("b")},
                                    {"COXSWAIN_TLS_CA", tls.ca}});
  EXPECT_EQ(Finish(*other), 1);
  EXPECT_THAT(other->err(),
              AllOf(HasSubstr("job b (by a token of b)"), HasSubstr("job a")));
}

TEST_F(SecureJobTest, WorkersOfAnotherJobAreTurnedAwayWithTheReason) {
  MakeCertificates();
  Serve();
  const auto run = Start(
      {"run", "--job", "a", "--", "examples/minimal/minimal"}, As("job-b"));
  EXPECT_NE(Finish(*run), 0);
  EXPECT_THAT(run->err(),
              AllOf(HasSubstr("Rendezvous.Join"), HasSubstr("job b"),
                    HasSubstr("job a"), HasSubstr("certificate")));
}

TEST_F(SecureJobTest, APrivateCoordinatorNeedsNoneOfIt) {
  MakeCertificates();
  const auto run =
      Start({"run", "--nproc", "1", "--no-prefix", "--", "/bin/sh", "-c",
             "echo \"[$COXSWAIN_TLS_CA$COXSWAIN_TLS_CERT$COXSWAIN_TLS_KEY]\""},
            {{"COXSWAIN_TLS_CA", Path("ca.crt")},
             {"COXSWAIN_TLS_CERT", Path("job-a.crt")},
             {"COXSWAIN_TLS_KEY", Path("job-a.key")}});
  EXPECT_EQ(Finish(*run), 0) << run->err();
  EXPECT_THAT(run->out(), HasSubstr("[]"));
}

TEST_F(SecureJobTest, PlainTextStaysOnThisMachineWithoutInsecure) {
  const auto refused =
      Start({"serve", "--listen", "0.0.0.0:0", "--state-dir", Path("state")});
  EXPECT_EQ(Finish(*refused), 2);
  EXPECT_THAT(refused->err(),
              AllOf(HasSubstr("0.0.0.0:0"), HasSubstr("--tls-cert"),
                    HasSubstr("--insecure")));
  // A name that only begins like a loopback address is none.
  const auto name = Start({"serve", "--listen", "127.evil.example:0",
                           "--state-dir", Path("state")});
  EXPECT_EQ(Finish(*name), 2);

  const auto token = Start({"status", "--coordinator", "10.0.0.1:7077",
                            "--token-file", "/etc/hostname"});
  EXPECT_EQ(Finish(*token), 2);
  EXPECT_THAT(token->err(),
              AllOf(HasSubstr("10.0.0.1:7077"), Not(HasSubstr("cannot"))));
}

}  // namespace
}  // namespace coxswain
