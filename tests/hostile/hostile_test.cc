// One client attacks, and a job that came before it and one that comes while
// it does both end as if nobody had: in real processes, over real sockets.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/hostile/attack.h"
#include "tests/scenarios/scenario.h"
#include "tests/support/process_status.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr int kRanks = 3;
constexpr int kSteps = 20;
// Each is a descriptor of this process, and one of the coordinator.
constexpr int kConnections = 1000;
// Bytes that a coordinator may log of two jobs and an attack.
constexpr size_t kMostLog = 100'000;
// And memory that it may take: what all connections may have it hold, and what
// it needs for a thousand of them and two jobs.
constexpr int64_t kMostKib = 1 << 20;

// A job of kRanks workers with its digests after each step.
std::vector<std::string> Job(const std::string& coordinator,
                             const std::vector<std::string>& more = {}) {
  std::vector<std::string> toy = {"--steps", absl::StrCat(kSteps), "--digest"};
  toy.insert(toy.end(), more.begin(), more.end());
  return Launcher({"--nproc", absl::StrCat(kRanks), "--job", "rows",
                   "--coordinator", coordinator},
                  toy);
}

using Digests = std::map<int, std::map<int64_t, std::string>>;

class HostileTest : public testing::TestWithParam<AttackKind> {
 protected:
  // What a job computes that is left alone.
  static void SetUpTestSuite() {
    ServedCoordinator coordinator;
    const Ended job = RunToEnd(Job(coordinator.address()));
    ASSERT_EQ(job.status, 0) << job.err;
    expected_ = new Digests(DigestsByRank(job.out));
    ASSERT_THAT(*expected_, SizeIs(kRanks));
    ASSERT_THAT(expected_->at(0), SizeIs(kSteps));
  }
  static void TearDownTestSuite() { delete expected_; }

  void SetUp() override {
    ASSERT_TRUE(RaiseDescriptorLimit(kConnections + 200))
        << "this test needs " << kConnections + 200
        << " descriptors: raise the hard limit (ulimit -Hn)";
  }

  static Digests* expected_;
};

Digests* HostileTest::expected_ = nullptr;

TEST_P(HostileTest, OthersAreServedAsIfNothingWere) {
  // To a file, which takes as much as there is.
  const TemporaryFolder folder;
  const std::string log = folder.path("log");
  ServedCoordinator coordinator(
      "127.0.0.1:0",
      {"sh", "-c", "exec \"$@\" --max-held-mib 512 2>>" + log, "sh"});
  // One job runs when it begins ...
  Gate gate;
  const auto early = Start(
      Job(coordinator.address(), {"--wait-at", "5", "--gate", gate.path()}));
  ASSERT_OK(early->WaitForStdout("rank 0 step 3 digest", kPatience));
  const auto attack =
      Attack::Begin(GetParam(), coordinator.port(), kConnections);
  gate.Open();
  const Ended first = EndOf(*early);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(DigestsByRank(first.out), *expected_);
  // ... and one comes while it goes on.
  const Ended second = RunToEnd(Job(coordinator.address()));
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(DigestsByRank(second.out), *expected_);
  const Attack::Count count = attack->count();
  std::printf("%s: %lld connections, %lld closed, %lld calls\n",
              NameOf(GetParam()).c_str(),
              static_cast<long long>(count.connections),
              static_cast<long long>(count.closed),
              static_cast<long long>(count.calls));
  // It did take place.
  EXPECT_GE(count.connections, 1);
  const int64_t kib = StatusKib(coordinator.process().pid(), "VmHWM");
  EXPECT_GT(kib, 0);
  EXPECT_LT(kib, kMostKib);
  coordinator.Stop();
  std::ifstream in(log);
  const std::string said{std::istreambuf_iterator<char>(in), {}};
  std::printf("%zu bytes of log, %lld KiB of memory at most\n", said.size(),
              static_cast<long long>(kib));
  EXPECT_THAT(said, HasSubstr("coordinator_stopped"));
  EXPECT_THAT(said, Not(HasSubstr(" lost")));
  EXPECT_LT(said.size(), kMostLog);
}

INSTANTIATE_TEST_SUITE_P(All, HostileTest, testing::ValuesIn(AllAttacks()),
                         [](const auto& tested) {
                           return NameOf(tested.param);
                         });

}  // namespace
}  // namespace coxswain
