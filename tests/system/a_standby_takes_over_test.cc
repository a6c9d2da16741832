#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "client/rpc/stub_factory.h"
#include "tests/support/etcd_server.h"
#include "tests/support/loopback.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr char kSteps[] = "12000";
// Up to this step the workers train without a leader, and then wait for one, so
// that they are not finished before.
constexpr char kWaitAt[] = "1000";
constexpr int64_t kReportEvery = 100;

absl::Time Now() { return Clock::Real()->Now(); }

std::vector<std::string> Toy() {
  return {"--steps", kSteps, "--digest", "--report-every",
          absl::StrCat(kReportEvery)};
}

// Without any fault, and with a coordinator of its own.
const std::map<int64_t, std::string>& Reference() {
  static const auto* const digests = [] {
    const Ended ended = RunToEnd(Launcher({"--nproc", "2"}, Toy()));
    EXPECT_EQ(ended.status, 0) << ended.err;
    return new std::map<int64_t, std::string>(DigestsByRank(ended.out)[0]);
  }();
  return *digests;
}

// Two coordinators on one etcd and one folder, and a job.
class StandbyTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_THAT(Reference(), Not(IsEmpty())); }

  std::unique_ptr<Process> Serve(int port, const std::string& lease) {
    return Start({kCoxswain, "serve", "--listen", Address(port), "--state",
                  absl::StrCat("etcd://", etcd_.endpoint(), "/cluster"),
                  "--state-dir", folder_.path("state"), "--leader-lease",
                  lease});
  }
  static std::string Address(int port) {
    return absl::StrCat("127.0.0.1:", port);
  }

  void StartAll(const std::string& lease) {
    first_ = Serve(first_port_, lease);
    ASSERT_OK(first_->WaitForStdout("listening on", kTimeout));
    second_ = Serve(second_port_, lease);
    ASSERT_OK(second_->WaitForStdout(
        absl::StrCat("standing by for ", Address(first_port_)), kTimeout));
    std::vector<std::string> toy = Toy();
    toy.insert(toy.end(), {"--latch", latch_.path(), "--wait-at", kWaitAt});
    launcher_ = Start(Launcher(
        {"--nproc", "2", "--job", "rows", "--coordinator",
         absl::StrCat(Address(first_port_), ",", Address(second_port_))},
        toy));
    ASSERT_OK(WaitForStep(kReportEvery));
  }

  absl::Status WaitForStep(int64_t step) {
    return launcher_->WaitForStdout(absl::StrCat(" step ", step, " digest"),
                                    kTimeout);
  }
  // The second leads.
  void AwaitTakeover() {
    ASSERT_OK(second_->WaitForStdout("listening on", kTimeout));
    latch_.Open();
  }
  // Which comes, at the earliest, with a step that is still to be done.
  int64_t NextReport() {
    launcher_->WaitForStdout("\n\n", absl::Milliseconds(1)).IgnoreError();
    const auto digests = DigestsByRank(launcher_->out());
    return digests.at(0).rbegin()->first + 2 * kReportEvery;
  }

  void ExpectAnExactEnd() {
    const Ended ended = EndOf(*launcher_);
    EXPECT_EQ(ended.status, 0) << ended.err << second_->err();
    auto digests = DigestsByRank(ended.out);
    EXPECT_EQ(digests[0], Reference());
    EXPECT_EQ(digests[1], Reference());
    // No process was restarted, nor did the job begin again.
    EXPECT_OK(first_->WaitForStderr("generation_began", kTimeout));
    EXPECT_THAT(LinesWith(ended.out, " pid "), SizeIs(2));
    EXPECT_THAT(LinesWith(first_->err() + second_->err(), "generation_began"),
                SizeIs(1));
  }

  EtcdServer etcd_;
  TemporaryFolder folder_;
  Latch latch_;
  const int first_port_ = UnusedPort();
  const int second_port_ = UnusedPort();
  std::unique_ptr<Process> first_;
  std::unique_ptr<Process> second_;
  std::unique_ptr<Process> launcher_;
};

TEST_F(StandbyTest, WhenTheActiveOneIsKilledWithinItsLeaseAndTwoSeconds) {
  const absl::Duration lease = absl::Seconds(5);
  StartAll("5s");
  const absl::Time killed = Now();
  first_->Signal(SIGKILL);
  AwaitTakeover();
  const absl::Duration takeover = Now() - killed;
  const int64_t next = NextReport();
  ASSERT_OK(WaitForStep(next));
  const absl::Duration training = Now() - killed;
  std::printf("listening after %s, training after %s\n",
              absl::FormatDuration(takeover).c_str(),
              absl::FormatDuration(training).c_str());
  EXPECT_LE(takeover, lease + absl::Seconds(2));
  ExpectAnExactEnd();
  EXPECT_THAT(second_->err(), HasSubstr("generation_resumed"));
}

TEST_F(StandbyTest, WhenTheLeaderIsStoppedCleanlyAtOnce) {
  StartAll("5s");
  const absl::Time stopped = Now();
  first_->Signal(SIGTERM);
  AwaitTakeover();
  const absl::Duration takeover = Now() - stopped;
  std::printf("listening after %s\n", absl::FormatDuration(takeover).c_str());
  EXPECT_LE(takeover, absl::Seconds(3));
  ExpectAnExactEnd();
}

TEST_F(StandbyTest, OneThatWasFrozenMeanwhileAnswersNothingAndStandsBy) {
  StartAll("2s");
  // Its answers to these are what it would send when it continues.
  const auto stub = ConnectCoordinator(Address(first_port_));
  CallOptions call;
  call.retry = false;
  ASSERT_OK(stub->Describe({}, call));
  first_->Signal(SIGSTOP);
  // Its other threads go on until the one that got the signal has run.
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, first_->pid(), &info, WSTOPPED | WNOWAIT), 0);
  std::vector<absl::Status> answers(8);
  std::vector<std::thread> callers;
  for (absl::Status& answer : answers) {
    callers.emplace_back([&] { answer = stub->Describe({}, call).status(); });
  }
  AwaitTakeover();
  first_->Signal(SIGCONT);
  for (std::thread& caller : callers) caller.join();
  EXPECT_THAT(answers,
              Each(StatusIs(absl::StatusCode::kUnavailable, testing::_)));
  ASSERT_OK(first_->WaitForStdout(
      absl::StrCat("standing by for ", Address(second_port_)), kTimeout));
  EXPECT_THAT(first_->err(), HasSubstr("leads_no_more"));
  ASSERT_OK(WaitForStep(NextReport()));

  // It is as good as any other, when its turn comes.
  second_->Signal(SIGKILL);
  ASSERT_OK(first_->WaitForStderr("term=3", kTimeout));
  ExpectAnExactEnd();
}

TEST_F(StandbyTest, OneThatStandsByCanBeStopped) {
  first_ = Serve(first_port_, "2s");
  ASSERT_OK(first_->WaitForStdout("listening on", kTimeout));
  second_ = Serve(second_port_, "2s");
  ASSERT_OK(second_->WaitForStdout("standing by", kTimeout));
  second_->Signal(SIGTERM);
  EXPECT_EQ(EndOf(*second_).status, 0);
  first_->Signal(SIGTERM);
  EXPECT_EQ(EndOf(*first_).status, 0);
}

TEST_F(StandbyTest, AnAddressThatCannotBeBoundIsReportedAtOnce) {
  first_ = Serve(first_port_, "2s");
  ASSERT_OK(first_->WaitForStdout("listening on", kTimeout));
  second_ = Serve(first_port_, "2s");
  const Ended ended = EndOf(*second_);
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr("cannot listen on"));
}

}  // namespace
}  // namespace coxswain
