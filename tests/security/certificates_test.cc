// TLS between the coordinator and the library that workers use, over loopback.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fake_clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/stub_factory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/security/test_certificates.h"
#include "tests/support/tcp_relay.h"

#ifdef __SANITIZE_ADDRESS__
// c-ares leaks the name of a host that it finds in the system's file of hosts.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares.so";
}
#endif

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);
// For connections that are not to be.
constexpr absl::Duration kRefused = absl::Milliseconds(700);

// gRPC connects again and again, and may be about to when time is up.
MATCHER(IsNotAnswered, "is not answered") {
  *result_listener << arg.ToString();
  return absl::IsUnavailable(arg) || absl::IsDeadlineExceeded(arg);
}

// What this process logs of one event.
class EventLog : public LogSink {
 public:
  explicit EventLog(std::string event) : event_(std::move(event)) {
    AddLogSink(this);
  }
  ~EventLog() override { RemoveLogSink(this); }

  void OnLine(const LogLine& line) override {
    if (line.event != event_) return;
    MutexLock lock(&mutex_);
    lines_.push_back(FormatLogLine(LogFormat::kText, line));
    changed_.NotifyAll();
  }

  // Waits for a line with both words.
  bool Await(const std::string& one, const std::string& other) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kTimeout,
                            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                              return Count(one, other) > 0;
                            });
  }
  int64_t CountOf(const std::string& one, const std::string& other) {
    MutexLock lock(&mutex_);
    return Count(one, other);
  }

 private:
  int64_t Count(const std::string& one, const std::string& other) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::count_if(
        lines_.begin(), lines_.end(), [&](const std::string& line) {
          return absl::StrContains(line, one) && absl::StrContains(line, other);
        });
  }

  const std::string event_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class CertificatesTest : public testing::Test {
 protected:
  CertificatesTest()
      : certificates_(absl::StrCat(
            "certificates-",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {}

  void Serve(const server::SecurityOptions& security) {
    server::CoordinatorOptions options;
    options.state_dir = certificates_.Path("state");
    options.security = security;
    ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(options));
  }
  void ServeTls() {
    server::SecurityOptions security;
    security.tls = certificates_.Coordinator();
    Serve(security);
  }

  // Asks over a connection of its own.
  absl::Status Ask(const ClientSecurity& security, absl::Duration timeout,
                   const std::string& host = "127.0.0.1") const {
    const auto stub = ConnectCoordinator(
        absl::StrCat(host, ":", coordinator_->port()), RetryPolicy(), security);
    CallOptions options;
    options.timeout = timeout;
    return stub->Describe({}, options).status();
  }
  static ClientSecurity With(const TlsFiles& files) {
    return {files, "", false};
  }
  // A client that stays, without waiting for its connection.
  std::shared_ptr<CoordinatorStub> Client(const ClientSecurity& security) {
    return ConnectCoordinator(absl::StrCat("127.0.0.1:", coordinator_->port()),
                              RetryPolicy(), security);
  }
  // Until a new connection is answered, or not any more.
  bool Await(const ClientSecurity& security, bool answered) const {
    const absl::Time deadline = Clock::Real()->Now() + kTimeout;
    while (Clock::Real()->Now() < deadline) {
      if (Ask(security, kRefused).ok() == answered) return true;
    }
    return false;
  }

  TestCertificates certificates_;
  FakeClock clock_{Clock::Real()->WallTime()};
  std::unique_ptr<server::Coordinator> coordinator_;
};

TEST_F(CertificatesTest, ACallerWithACertificateIsAnswered) {
  ServeTls();
  EXPECT_OK(Ask(With(certificates_.Job("a")), kTimeout));
  EXPECT_OK(Ask(With(certificates_.Operator()), kTimeout));
}

TEST_F(CertificatesTest, ACallerWithoutOneOrOfAnotherAuthorityIsRefused) {
  ServeTls();
  TlsFiles no_cert;
  no_cert.ca = certificates_.Path("ca.crt");
  EXPECT_THAT(Ask(With(no_cert), kRefused), IsNotAnswered());
  EXPECT_THAT(Ask({}, kRefused), IsNotAnswered());
  // Of another authority, which calls itself the same. It trusts ours.
  TestCertificates others("others");
  TlsFiles stranger = others.Job("a");
  stranger.ca = certificates_.Path("ca.crt");
  EXPECT_THAT(Ask(With(stranger), kRefused), IsNotAnswered());
  EXPECT_OK(Ask(With(certificates_.Job("a")), kTimeout));
}

TEST_F(CertificatesTest, ACoordinatorOfAnotherAuthorityIsNotBelieved) {
  ServeTls();
  TlsFiles files = certificates_.Job("a");
  TestCertificates others("others-ca");
  files.ca = others.Path("ca.crt");
  EXPECT_THAT(Ask(With(files), kRefused), IsNotAnswered());
}

TEST_F(CertificatesTest, ACoordinatorWithAnotherNameIsNotBelieved) {
  ServeTls();  // for 127.0.0.1 alone
  EXPECT_THAT(Ask(With(certificates_.Job("a")), kRefused, "localhost"),
              IsNotAnswered());
}

TEST_F(CertificatesTest, WhatHasRunOutDoesNotCount) {
  ServeTls();
  const absl::Time now = Clock::Real()->WallTime();
  const TlsFiles old = certificates_.Issue(
      "old", "coxswain://job/a", {now - absl::Hours(2), now - absl::Hours(1)});
  EXPECT_THAT(Ask(With(old), kRefused), IsNotAnswered());
  // A coordinator does not start with one.
  server::CoordinatorOptions options;
  options.state_dir = certificates_.Path("another-state");
  options.security.tls = old;
  EXPECT_THAT(
      server::Coordinator::Start(options).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expired")));
}

// As if the connection had been opened by resuming a session of TLS, in which
// the certificate is not checked again: gRPC follows the system's clock.
TEST_F(CertificatesTest, WhatHasRunOutOpensNoConnectionByAnOldSession) {
  server::CoordinatorOptions options;
  options.state_dir = certificates_.Path("state");
  options.security.tls = certificates_.Coordinator();
  options.clock = &clock_;
  ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(options));
  const ClientSecurity job = With(certificates_.Job("a"));
  const auto before = ConnectCoordinator(
      absl::StrCat("127.0.0.1:", coordinator_->port()), RetryPolicy(), job);
  CallOptions call;
  call.timeout = kTimeout;
  ASSERT_OK(before->Describe({}, call).status());
  clock_.Advance(absl::Hours(24 * 365 * 100));
  EXPECT_THAT(Ask(job, kTimeout), StatusIs(absl::StatusCode::kUnauthenticated,
                                           HasSubstr("expired at")));
  // A connection that was there stays.
  EXPECT_OK(before->Describe({}, call).status());
}

// A peer's address and port do not identify a connection: connections to
// different addresses of the coordinator may share both.
TEST_F(CertificatesTest, WhatHasRunOutDoesNotPassForAGoodOneOfTheSamePort) {
  server::CoordinatorOptions options;
  options.listen = "0.0.0.0:0";
  options.state_dir = certificates_.Path("state");
  options.security.tls = certificates_.Coordinator();
  options.clock = &clock_;
  ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(options));
  const absl::Time now = clock_.WallTime();
  const absl::Duration year = absl::Hours(24 * 365);
  const TlsFiles good =
      certificates_.Issue("good", "coxswain://job/a", {now, now + 9 * year});
  const TlsFiles old =
      certificates_.Issue("old", "coxswain://job/a", {now, now + year});
  // Below the ports that the system gives, of an address that none else uses.
  const TcpRelay::End source = {"127.0.77.1", 20'077};
  TcpRelay to_one({"127.0.0.1", coordinator_->port()}, source);
  TcpRelay to_another({"127.0.0.2", coordinator_->port()}, source);
  const auto connect = [](const TcpRelay& relay, const TlsFiles& files) {
    return ConnectCoordinator(absl::StrCat("127.0.0.1:", relay.port()),
                              RetryPolicy(), With(files));
  };
  const auto with_old = connect(to_one, old);
  const auto with_good = connect(to_another, good);
  CallOptions call;
  call.timeout = kTimeout;
  // gRPC, which follows the system's clock, accepts both.
  clock_.Advance(2 * year);
  const auto run_out =
      StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("expired at"));
  EXPECT_THAT(with_old->Describe({}, call).status(), run_out);
  EXPECT_OK(with_good->Describe({}, call).status());
  EXPECT_THAT(with_old->Describe({}, call).status(), run_out);
  EXPECT_OK(with_good->Describe({}, call).status());
}

TEST_F(CertificatesTest, TlsToACoordinatorInPlainTextIsNotAnswered) {
  Serve({});
  EXPECT_THAT(Ask(With(certificates_.Job("a")), kRefused), IsNotAnswered());
  EXPECT_OK(Ask({}, kTimeout));
}

TEST_F(CertificatesTest, FilesAreReadAgainWithoutARestart) {
  ServeTls();
  const ClientSecurity before = With(certificates_.Job("a"));
  ASSERT_OK(Ask(before, kTimeout));
  // One of before, which stays as it was.
  ClientSecurity old = before;
  for (std::string* const file : {&old.tls.cert, &old.tls.key, &old.tls.ca}) {
    const std::string copy = *file + ".old";
    ASSERT_EQ(link(file->c_str(), copy.c_str()), 0);
    *file = copy;
  }
  // A client from before the change, whose files change as well.
  const auto stub = ConnectCoordinator(
      absl::StrCat("127.0.0.1:", coordinator_->port()), RetryPolicy(), before);
  CallOptions options;
  options.timeout = kTimeout;
  ASSERT_OK(stub->Describe({}, options).status());

  certificates_.Renew();
  certificates_.Coordinator();
  certificates_.Job("a");
  EXPECT_TRUE(Await(before, /*answered=*/true));
  EXPECT_TRUE(Await(old, /*answered=*/false));
  // Its connection has stayed.
  EXPECT_OK(stub->Describe({}, options).status());
}

TEST_F(CertificatesTest, AClientReadsItsFilesAgain) {
  ServeTls();
  const int port = coordinator_->port();
  const auto stub =
      ConnectCoordinator(absl::StrCat("127.0.0.1:", port), RetryPolicy(),
                         With(certificates_.Job("a")));
  CallOptions options;
  options.timeout = kTimeout;
  ASSERT_OK(stub->Describe({}, options).status());
  // All is new, the coordinator too: the same stub finds its way back.
  certificates_.Renew();
  const TlsFiles files = certificates_.Coordinator();
  certificates_.Job("a");
  coordinator_.reset();
  server::CoordinatorOptions again;
  again.listen = absl::StrCat("127.0.0.1:", port);
  again.state_dir = certificates_.Path("state");
  again.security.tls = files;
  ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(again));
  EXPECT_OK(stub->Describe({}, options).status());
}

// By itself gRPC would end the process, of the coordinator as well as of a
// worker, for an empty file, and refuse each new connection for others.
TEST_F(CertificatesTest, FilesThatAreNotGoodLoseNothing) {
  EventLog refused("certificates_not_taken");
  ServeTls();
  const ClientSecurity job = With(certificates_.Job("a"));
  const auto worker = Client(job);  // watches its own files
  const std::string other_key = certificates_.Read("job-a.key");
  const struct {
    std::string file;
    std::string text;
    std::string what;
  } cases[] = {
      {"coordinator.crt", "", "is empty"},
      {"coordinator.key", "", "is empty"},
      {"ca.crt", "", "is empty"},
      {"job-a.crt", "", "is empty"},
      {"job-a.key", "", "is empty"},
      {"coordinator.crt", "garbage", "no certificate"},
      {"coordinator.key", "garbage", "no private key"},
      {"coordinator.key", other_key, "not that of the certificate"},
      {"ca.crt", "garbage", "no certificate"},
      {"job-a.crt", "garbage", "no certificate"},
  };
  for (const auto& bad : cases) {
    SCOPED_TRACE(absl::StrCat(bad.file, ": ", bad.what));
    const std::string good = certificates_.Read(bad.file);
    certificates_.Write(bad.file, bad.text);
    EXPECT_TRUE(refused.Await(certificates_.Path(bad.file), bad.what));
    // By a new connection, for which both ends need their certificates.
    EXPECT_OK(Ask(job, kTimeout));
    certificates_.Write(bad.file, good);
  }
}

TEST_F(CertificatesTest, HalfOfARenewalDoesNotCount) {
  EventLog refused("certificates_not_taken");
  EventLog renewed("certificates_renewed");
  ServeTls();
  const ClientSecurity job = With(certificates_.Job("a"));
  const auto worker = Client(job);
  certificates_.Issue("next", kCoordinatorUri);
  const std::string cert =
      certificates_.Write("coordinator.crt", certificates_.Read("next.crt"));
  const std::string key = certificates_.Path("coordinator.key");
  EXPECT_TRUE(refused.Await(key, "not that of the certificate"));
  EXPECT_OK(Ask(job, kTimeout));
  certificates_.Write("coordinator.key", certificates_.Read("next.key"));
  EXPECT_TRUE(renewed.Await(cert, "name=next"));
  EXPECT_OK(Ask(job, kTimeout));
  EXPECT_EQ(refused.CountOf(key, ""), 1);  // not at each look
}

// As above, and everybody has new certificates in the end.
TEST_F(CertificatesTest, AGoodRenewalIsTakenAfterABadOne) {
  EventLog refused("certificates_not_taken");
  ServeTls();
  const ClientSecurity job = With(certificates_.Job("a"));
  const auto worker = Client(job);
  CallOptions options;
  options.timeout = kTimeout;
  ASSERT_OK(worker->Describe({}, options).status());
  certificates_.Write("coordinator.crt", "");
  certificates_.Write("job-a.crt", "");
  EXPECT_TRUE(refused.Await(certificates_.Path("coordinator.crt"), "is empty"));
  EXPECT_TRUE(refused.Await(certificates_.Path("job-a.crt"), "is empty"));

  certificates_.Renew();
  certificates_.Coordinator();
  certificates_.Job("a");
  // Of a client that begins only now.
  const ClientSecurity next = With(certificates_.Job("b"));
  EXPECT_TRUE(Await(next, /*answered=*/true));
  EXPECT_TRUE(Await(job, /*answered=*/true));
  EXPECT_OK(worker->Describe({}, options).status());
}

}  // namespace
}  // namespace coxswain
