// Two coordinators on one etcd, each behind a haproxy of its own, and workers
// whose gradients travel over the sockets of `tcp`.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/security/haproxy.h"
#include "tests/support/etcd_server.h"
#include "tests/support/loopback.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSteps = 300;
// Where workers wait for the end of the takeover.
constexpr int64_t kWaitAt = 100;
constexpr int64_t kReportEvery = 20;
// Five times what a proxy takes of one address in 10 s.
constexpr int kKnocks = 1000;

// Returns whether a connection to a port of the loopback is closed there at
// once; false: it was not made.
bool IsTurnedAway(int port) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    return false;
  }
  char byte;
  return recv(fd.get(), &byte, 1, 0) <= 0;
}

class TwoProxiesTest : public testing::Test {
 protected:
  struct Side {
    int port = UnusedPort();  // of the proxy
    int behind = UnusedPort();
    std::unique_ptr<Process> coordinator;
    std::unique_ptr<Process> proxy;
  };

  void SetUp() override {
    const Ended made = RunToEnd({kCoxswain, "certs", "init", "--dir",
                                 folder_.path("certs"), "--job", "rows"});
    ASSERT_EQ(made.status, 0) << made.err;
    std::ofstream(folder_.path("tokens"))
        << "job/rows " << std::string(64, 'a') << "\n";
    const FrontFiles files(folder_.path("certs"), folder_.path("tokens"),
                           folder_.path("maps"));
    for (Side* side : {&first_, &second_}) {
      side->coordinator =
          Start({kCoxswain, "serve", "--listen",
                 absl::StrCat("127.0.0.1:", side->behind), "--tokens",
                 folder_.path("tokens"), "--state",
                 absl::StrCat("etcd://", etcd_.endpoint(), "/cluster"),
                 "--state-dir", folder_.path("state"), "--leader-lease", "3s",
                 "--reattach-grace", "1m"});
      ASSERT_OK(side->coordinator->WaitForStdout(
          side == &first_ ? "listening on" : "standing by for", kTimeout));
      side->proxy =
          files.Start(side->port, side->behind, /*one_of_several=*/true);
    }
  }

  // Returns the command of two workers, which show a certificate.
  std::vector<std::string> Workers() const {
    return Launcher(
        {"--job", "rows", "--nproc", "2", "--backend", "tcp", "--coordinator",
         absl::StrCat("127.0.0.1:", first_.port, ",127.0.0.1:", second_.port),
         "--tls-ca", folder_.path("certs/ca.crt"), "--tls-cert",
         folder_.path("certs/job-rows.crt"), "--tls-key",
         folder_.path("certs/job-rows.key")},
        {"--steps", absl::StrCat(kSteps), "--digest", "--report-every",
         absl::StrCat(kReportEvery), "--latch", latch_.path(), "--wait-at",
         absl::StrCat(kWaitAt)});
  }

  EtcdServer etcd_;
  TemporaryFolder folder_;
  Latch latch_;
  Side first_;
  Side second_;
};

TEST_F(TwoProxiesTest, WorkersGoOnWhereTheOtherTakesOver) {
  const auto workers = Start(Workers());
  ASSERT_OK(workers->WaitForStdout(
      absl::StrCat(" step ", kReportEvery, " digest"), kTimeout));
  first_.coordinator->Signal(SIGKILL);
  ASSERT_OK(second_.coordinator->WaitForStdout("listening on", kTimeout));
  // They find it behind its proxy, before they go on.
  for (const int rank : {0, 1}) {
    ASSERT_OK(second_.coordinator->WaitForStderr(
        absl::StrCat("attached job=rows generation=1 rank=", rank), kTimeout));
  }
  latch_.Open();

  const Ended ended = EndOf(*workers);
  EXPECT_EQ(ended.status, 0) << ended.err << second_.coordinator->err();
  auto digests = DigestsByRank(ended.out);
  ASSERT_THAT(digests, SizeIs(2));
  EXPECT_THAT(digests[0], SizeIs(kSteps / kReportEvery));
  EXPECT_EQ(digests[0], digests[1]);
  // In one generation, encrypted by its key.
  EXPECT_THAT(LinesWith(ended.out, "through tcp"), SizeIs(2)) << ended.out;
  EXPECT_OK(first_.coordinator->WaitForStderr("generation_began", kTimeout));
  EXPECT_THAT(second_.coordinator->err(), HasSubstr("generation_resumed"));
  EXPECT_THAT(LinesWith(second_.coordinator->err(), "generation_began"),
              IsEmpty());
}

// Workers try both addresses, several times a second for each process, until
// one of them has a coordinator.
TEST_F(TwoProxiesTest, WhoKnockedWhereNoneWasIsTakenOnceOneIsThere) {
  ASSERT_OK(second_.proxy->WaitForStderr("is DOWN", kTimeout));
  int turned_away = 0;
  for (int i = 0; i < kKnocks; ++i) turned_away += IsTurnedAway(second_.port);
  EXPECT_EQ(turned_away, kKnocks);
  first_.coordinator->Signal(SIGKILL);
  ASSERT_OK(second_.coordinator->WaitForStdout("listening on", kTimeout));
  ASSERT_OK(second_.proxy->WaitForStderr("is UP", kTimeout));
  const Ended ended =
      RunToEnd({kCoxswain, "status", "--job", "rows", "--coordinator",
                absl::StrCat("127.0.0.1:", second_.port), "--tls-ca",
                folder_.path("certs/ca.crt"), "--tls-cert",
                folder_.path("certs/job-rows.crt"), "--tls-key",
                folder_.path("certs/job-rows.key")});
  EXPECT_THAT(ended.err, HasSubstr("no job 'rows' is known"));
}

}  // namespace
}  // namespace coxswain
