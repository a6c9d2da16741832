// What the error has where a client's connection to a coordinator does not come
// about: real coordinators, certificates and ports.
#include "client/rpc/connection_hint.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "client/session/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/security/test_certificates.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string TestName() {
  return testing::UnitTest::GetInstance()->current_test_info()->name();
}

// A port where another program answers each connection with a line, or with
// nothing, and where nothing listens once it is closed.
class OtherProgram {
 public:
  explicit OtherProgram(std::string line)
      : line_(std::move(line)), socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_.get(), any, size), 0);
    EXPECT_EQ(listen(socket_.get(), 16), 0);
    EXPECT_EQ(getsockname(socket_.get(), any, &size), 0);
    port_ = ntohs(address.sin_port);
    if (!line_.empty()) thread_ = std::thread([this] { Answer(); });
  }
  ~OtherProgram() { Close(); }

  void Close() {
    shutdown(socket_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    socket_.Close();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  void Answer() {
    while (true) {
      const UniqueFd peer(accept(socket_.get(), nullptr, nullptr));
      if (!peer.valid()) return;
      send(peer.get(), line_.data(), line_.size(), MSG_NOSIGNAL);
    }
  }

  const std::string line_;
  UniqueFd socket_;
  int port_ = 0;
  std::thread thread_;
};

class ConnectionHintTest : public testing::Test {
 protected:
  ConnectionHintTest()
      : certificates_(absl::StrCat("hint-", TestName())),
        others_(absl::StrCat("hint-others-", TestName())) {}

  // Its address.
  std::string Serve(const TlsFiles& tls = {}) {
    server::CoordinatorOptions options;
    options.state_dir = certificates_.Path("state");
    options.security.tls = tls;
    auto coordinator = server::Coordinator::Start(options);
    EXPECT_OK(coordinator);
    coordinator_ = *std::move(coordinator);
    return absl::StrCat("127.0.0.1:", coordinator_->port());
  }
  std::string ServeTls() { return Serve(certificates_.Coordinator()); }

  static ClientSecurity With(const TlsFiles& files) {
    return {files, "", false};
  }
  ClientSecurity Operator() { return With(certificates_.Operator()); }

  TestCertificates certificates_;
  TestCertificates others_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

TEST_F(ConnectionHintTest, ThereIsNoneWhereAllIsWell) {
  EXPECT_EQ(ConnectionHint(ServeTls(), Operator()), "");
  coordinator_.reset();
  EXPECT_EQ(ConnectionHint(Serve(), {}), "");
}

TEST_F(ConnectionHintTest, ThereIsNoneWhereNothingListens) {
  OtherProgram gone("");
  gone.Close();
  EXPECT_EQ(ConnectionHint(gone.address(), {}), "");
  EXPECT_EQ(ConnectionHint(gone.address(), Operator()), "");
  EXPECT_EQ(ConnectionHint("no-such-host.invalid:1", {}), "");
}

TEST_F(ConnectionHintTest, PlainTextToACoordinatorWithTls) {
  const std::string address = ServeTls();
  EXPECT_THAT(ConnectionHint(address, {}),
              AllOf(StartsWith(address), HasSubstr("it requires TLS: give "
                                                   "--tls-ca")));
}

TEST_F(ConnectionHintTest, TlsToACoordinatorInPlainText) {
  EXPECT_THAT(ConnectionHint(Serve(), Operator()),
              HasSubstr("it speaks plain text, and --tls-ca asks for TLS"));
}

TEST_F(ConnectionHintTest, AnotherProgramAtThePort) {
  for (const char* line :
       {"", "SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n"}) {
    SCOPED_TRACE(line);
    const OtherProgram program(line);
    for (const ClientSecurity& security : {ClientSecurity(), Operator()}) {
      EXPECT_THAT(ConnectionHint(program.address(), security),
                  AllOf(HasSubstr("speaks neither gRPC nor TLS"),
                        HasSubstr("check the port in --coordinator")));
    }
  }
}

TEST_F(ConnectionHintTest, AnAuthorityThatDoesNotMatch) {
  const std::string address = ServeTls();
  TlsFiles files = certificates_.Operator();
  files.ca = others_.Path("ca.crt");
  EXPECT_THAT(ConnectionHint(address, With(files)),
              AllOf(HasSubstr(absl::StrCat("no authority in ", files.ca)),
                    HasSubstr("certificate 'coordinator'"),
                    HasSubstr("give the ca.crt of that coordinator with "
                              "--tls-ca")));
}

TEST_F(ConnectionHintTest, AHostThatTheCertificateDoesNotName) {
  ServeTls();  // for 127.0.0.1 alone
  EXPECT_THAT(ConnectionHint(absl::StrCat("localhost:", coordinator_->port()),
                             Operator()),
              AllOf(HasSubstr("is for 127.0.0.1, and not for localhost"),
                    HasSubstr("`coxswain certs init` makes a new")));
}

TEST_F(ConnectionHintTest, ACertificateOfTheCoordinatorThatRunsOut) {
  const absl::Time now = Clock::Real()->WallTime();
  // Good when the coordinator starts, which takes no other one.
  const std::string address = Serve(
      certificates_.Issue("coordinator", kCoordinatorUri,
                          {now - absl::Hours(2), now + absl::Seconds(3)}));
  const absl::Time deadline = Clock::Real()->Now() + absl::Seconds(30);
  std::string hint;
  while (hint.empty() && Clock::Real()->Now() < deadline) {
    hint = ConnectionHint(address, Operator());
  }
  EXPECT_THAT(hint, AllOf(HasSubstr("the coordinator's certificate "
                                    "'coordinator' expired at "),
                          HasSubstr("renew")));
}

TEST_F(ConnectionHintTest, ACallerWithoutACertificateOrOfAnotherAuthority) {
  const std::string address = ServeTls();
  TlsFiles files;
  files.ca = certificates_.Path("ca.crt");
  EXPECT_THAT(ConnectionHint(address, With(files)),
              HasSubstr("it probably asks for a certificate: give --tls-cert "
                        "and --tls-key"));
  files = others_.Operator();
  files.ca = certificates_.Path("ca.crt");
  EXPECT_THAT(ConnectionHint(address, With(files)),
              HasSubstr(absl::StrCat("does not trust the certificate in ",
                                     files.cert)));
}

TEST_F(ConnectionHintTest, FilesThatCannotBeUsed) {
  const std::string address = ServeTls();
  TlsFiles files = certificates_.Operator();
  files.ca = certificates_.Path("missing.crt");
  EXPECT_THAT(
      ConnectionHint(address, With(files)),
      AllOf(StartsWith("--tls-ca: cannot read "), HasSubstr("missing.crt")));
  files = certificates_.Operator();
  files.key = others_.Operator().key;
  EXPECT_THAT(ConnectionHint(address, With(files)),
              AllOf(StartsWith("--tls-key: "), HasSubstr("is not that of")));
  const absl::Time now = Clock::Real()->WallTime();
  files = certificates_.Issue("old", kOperatorUri,
                              {now - absl::Hours(2), now - absl::Hours(1)});
  EXPECT_THAT(ConnectionHint(address, With(files)),
              AllOf(StartsWith("--tls-cert: "), HasSubstr("expired at")));
}

TEST_F(ConnectionHintTest, AJoinThatIsNotAnsweredEndsWithTheCause) {
  SessionOptions options;
  options.coordinator = ServeTls();
  options.job = "a";
  options.world_size = 1;
  options.join_timeout = absl::Milliseconds(300);
  EXPECT_THAT(Session::Join(options, {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("could not join job 'a'"),
                             HasSubstr("Probable cause: "),
                             HasSubstr("it requires TLS: give --tls-ca"))));
  options.security.tls = certificates_.Job("a");
  options.security.tls.ca = others_.Path("ca.crt");
  EXPECT_THAT(Session::Join(options, {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("no authority in ")));
}

TEST_F(ConnectionHintTest, OfSeveralTheOneThatListensIsLookedAt) {
  OtherProgram standby("");
  standby.Close();
  const std::string address = ServeTls();
  EXPECT_THAT(ConnectionHint(absl::StrCat(standby.address(), ",", address), {}),
              StartsWith(absl::StrCat(address, ": it requires TLS")));
}

TEST_F(ConnectionHintTest, GoesBehindAnErrorWithoutAnAnswerAlone) {
  const std::string address = ServeTls();
  EXPECT_THAT(
      WithConnectionHint(absl::UnavailableError("reset"), address, {}),
      StatusIs(absl::StatusCode::kUnavailable,
               StartsWith(absl::StrCat("reset. Probable cause: ", address))));
  for (const absl::Status& error :
       {absl::OkStatus(), absl::NotFoundError("no job"),
        absl::PermissionDeniedError("another job")}) {
    EXPECT_EQ(WithConnectionHint(error, address, {}), error);
  }
}

}  // namespace
}  // namespace coxswain
