// One client attacks; a job that began before it and one that begins during the
// attack both end as if it had not: in real processes, over real sockets, in
// each way in which a coordinator is reached. docs/security.md has the table.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/security/attack.h"
#include "tests/security/reachable.h"
#include "tests/support/process_status.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::_;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr int kRanks = 3;
constexpr int kSteps = 20;
// Bytes that a coordinator may log of two jobs and an attack.
constexpr size_t kMostLog = 100'000;
// And memory that it may take: what gRPC may hold, and what it needs for a
// thousand connections and two jobs.
constexpr int64_t kMostKib =
    (ReachableCoordinator::kMaxHeldMib + 256) * int64_t{1024};
// Sanitizers keep what was freed, and notes on all memory; and a coordinator
// that is ten times as slow withstands a tenth of the attackers. Each
// connection is a descriptor of this process, and one of the coordinator.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kMostResidentKib = 4 * kMostKib;
constexpr int kConnections = 100;
#else
constexpr int64_t kMostResidentKib = kMostKib;
constexpr int kConnections = 1000;
#endif

// Runs a job of kRanks workers; returns its digests after each step.
std::vector<std::string> Job(const ReachableCoordinator& coordinator,
                             const std::vector<std::string>& more = {}) {
  std::vector<std::string> toy = {"--steps", absl::StrCat(kSteps), "--digest"};
  toy.insert(toy.end(), more.begin(), more.end());
  std::vector<std::string> options = coordinator.WorkerOptions();
  options.insert(options.end(), {"--nproc", absl::StrCat(kRanks)});
  return Launcher(options, toy);
}

struct Case {
  Way way;
  bool member;  // of another job; else a stranger
  AttackKind kind;
};

// Returns every attack for which the table promises that others are served. For
// the rest it states that members are trusted: those attacks can stop a
// coordinator.
std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const AttackKind kind : AllAttacks()) {
    const bool bounded_direct =
        kind != AttackKind::kResets && kind != AttackKind::kWholeResets &&
        kind != AttackKind::kManyResets && kind != AttackKind::kEndlessHeaders;
    if (bounded_direct) {
      cases.push_back({Way::kInsecure, true, kind});
      // What TLS may change: which side holds the bytes, and what each one
      // costs.
      if (kind == AttackKind::kPings || kind == AttackKind::kSmallCalls ||
          kind == AttackKind::kHugeMessages) {
        cases.push_back({Way::kCertificates, true, kind});
      }
    } else {
      cases.push_back({Way::kCertificates, false, kind});
    }
    cases.push_back({Way::kProxy, true, kind});
    if (kind == AttackKind::kSilent || !bounded_direct) {
      cases.push_back({Way::kProxy, false, kind});
    }
  }
  return cases;
}

using Digests = std::map<int, std::map<int64_t, std::string>>;

class HostileTest : public testing::TestWithParam<Case> {
 protected:
  // What a job computes that is left alone.
  static void SetUpTestSuite() {
    ReachableCoordinator coordinator(Way::kInsecure);
    const Ended job = RunToEnd(Job(coordinator));
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
  const auto [way, member, kind] = GetParam();
  ReachableCoordinator coordinator(way);
  // Members' calls reach the coordinator, strangers' calls do not.
  if (way != Way::kInsecure) {
    EXPECT_THAT(coordinator.Probe(member),
                member ? StatusIs(absl::StatusCode::kPermissionDenied, _)
                : way == Way::kProxy
                    ? StatusIs(absl::StatusCode::kUnauthenticated, _)
                    : StatusIs(absl::StatusCode::kUnavailable, _));
  }
  // One job runs when it begins ...
  Latch latch;
  const auto early =
      Start(Job(coordinator, {"--wait-at", "5", "--latch", latch.path()}));
  ASSERT_OK(early->WaitForStdout("rank 0 step 3 digest", kTimeout));
  const auto attack =
      Attack::Begin(kind, coordinator.PortFor(member), kConnections);
  latch.Open();
  const Ended first = EndOf(*early);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(DigestsByRank(first.out), *expected_);
  // ... and one comes while it goes on.
  const Ended second = RunToEnd(Job(coordinator));
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(DigestsByRank(second.out), *expected_);
  const Attack::Count count = attack->count();
  std::printf("%s: %lld connections, %lld closed, %lld calls\n",
              NameOf(kind).c_str(), static_cast<long long>(count.connections),
              static_cast<long long>(count.closed),
              static_cast<long long>(count.calls));
  // It did take place.
  EXPECT_GE(count.connections, 1);
  const int64_t kib = StatusKib(coordinator.pid(), "VmHWM");
  EXPECT_GT(kib, 0);
  EXPECT_LT(kib, kMostResidentKib);
  const std::string log = coordinator.Stop();
  std::printf("%zu bytes of log, %lld KiB of memory at most\n", log.size(),
              static_cast<long long>(kib));
  EXPECT_THAT(log, HasSubstr("coordinator_stopped"));
  EXPECT_THAT(log, Not(HasSubstr(" lost")));
  EXPECT_LT(log.size(), kMostLog);
}

INSTANTIATE_TEST_SUITE_P(All, HostileTest, testing::ValuesIn(AllCases()),
                         [](const auto& tested) {
                           const Case& one = tested.param;
                           return absl::StrCat(
                               NameOf(one.way),
                               one.member ? "Member" : "Stranger",
                               NameOf(one.kind));
                         });

// However much is sent of messages that never become whole, and however large
// they are to be. Jobs, whose calls gRPC may end for it as well, go on.
TEST(HeldMessagesTest, WhatNeverBecomesWholeIsBounded) {
  constexpr int64_t kEnough = 3 * kMostKib * 1024;
  constexpr int kMostJobs = 100;
  ReachableCoordinator coordinator(Way::kInsecure);
  const auto attack = Attack::Begin(AttackKind::kHalfMessages,
                                    coordinator.PortFor(/*member=*/true), 0);
  int jobs = 0;
  for (; jobs < kMostJobs && attack->count().bytes < kEnough; ++jobs) {
    const Ended job = RunToEnd(Job(coordinator));
    ASSERT_EQ(job.status, 0) << job.err;
  }
  EXPECT_GE(attack->count().bytes, kEnough) << "after " << jobs << " jobs";
  EXPECT_LT(StatusKib(coordinator.pid(), "VmHWM"), kMostResidentKib);
  EXPECT_THAT(coordinator.Stop(), HasSubstr("coordinator_stopped"));
}

// Over TLS jobs may end by it (docs/security.md), but the coordinator does not.
TEST(HeldMessagesTest, WhatNeverBecomesWholeIsBoundedOverTls) {
  constexpr int64_t kEnough = 2 * kMostKib * 1024;
  ReachableCoordinator coordinator(Way::kCertificates);
  auto attack = Attack::Begin(AttackKind::kHalfMessages,
                              coordinator.PortFor(/*member=*/true), 0);
  const absl::Time deadline = Clock::Real()->Now() + kTimeout;
  while (attack->count().bytes < kEnough && Clock::Real()->Now() < deadline) {
    (void)coordinator.Probe(/*member=*/true);
  }
  EXPECT_GE(attack->count().bytes, kEnough);
  attack.reset();
  EXPECT_LT(StatusKib(coordinator.pid(), "VmHWM"), kMostResidentKib);
  const Ended job = RunToEnd(Job(coordinator));
  EXPECT_EQ(job.status, 0) << job.err;
  EXPECT_THAT(coordinator.Stop(), HasSubstr("coordinator_stopped"));
}

// Workers go on through a reload, as after a change of tokens.
TEST(ProxyTest, AJobOutlivesAReload) {
  ReachableCoordinator coordinator(Way::kProxy);
  Latch latch;
  const auto job =
      Start(Job(coordinator, {"--wait-at", "5", "--latch", latch.path()}));
  ASSERT_OK(job->WaitForStdout("rank 0 step 3 digest", kTimeout));
  coordinator.ReloadProxy();
  latch.Open();
  const Ended first = EndOf(*job);
  EXPECT_EQ(first.status, 0) << first.err;
  const Ended second = RunToEnd(Job(coordinator));
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_THAT(coordinator.Stop(), Not(HasSubstr(" lost")));
}

// A certificate is its job, whatever its owner sends beside it: here the other
// job's token.
TEST(ProxyTest, AJobIsTheOneInItsCertificate) {
  ReachableCoordinator coordinator(Way::kProxy);
  const TemporaryFolder folder;
  std::ofstream(folder.path("token")) << std::string(64, 'a') << "\n";
  std::vector<std::string> other = Job(coordinator);
  const auto run = std::find(other.begin(), other.end(), "run");
  ASSERT_NE(run, other.end());
  other.insert(run + 1, {"--token-file", folder.path("token")});
  for (std::string& word : other) {
    const size_t found = word.find("job-rows.");
    if (found != word.npos) word.replace(found, 8, "job-attacker");
  }
  const Ended refused = RunToEnd(other);
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err, HasSubstr("PERMISSION_DENIED"));
}

}  // namespace
}  // namespace coxswain
