// The coordinator is killed at random moments while workers train. They find
// the next one, which goes on from the records of the last: each job ends with
// the numbers of a job without kills, and with the processes it began with.
//
// COORDINATOR_KILLS and SEED come from the environment: --test_env=SEED=7 for
// another run.
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "tests/support/environment.h"
#include "tests/support/loopback.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kRanks = 3;
constexpr int kSteps = 1500;
constexpr int kReportEvery = 50;

// How long a coordinator may live before it is killed: from the time when it
// has not opened its state yet to the time when all work with it.
constexpr absl::Duration kLongestLife = absl::Milliseconds(600);
constexpr absl::Duration kLongestGap = absl::Milliseconds(100);
// So many in a row may die without the job getting on; more would be an outage
// that ends the workers' grace, which is not what this is about.
constexpr int kMostInARow = 3;

std::vector<std::string> Job(const std::vector<std::string>& options) {
  std::vector<std::string> run_options = {"--nproc", absl::StrCat(kRanks)};
  run_options.insert(run_options.end(), options.begin(), options.end());
  return Launcher(run_options, {"--steps", absl::StrCat(kSteps), "--digest",
                                "--hook", "powersgd(rank=1,start_step=5)",
                                "--report-every", absl::StrCat(kReportEvery)});
}

class CoordinatorKillTest : public testing::Test {
 protected:
  CoordinatorKillTest()
      : address_(absl::StrCat("127.0.0.1:", UnusedPort())),
        random_(FromEnvironment("SEED", 1), 0) {}

  void Serve() {
    coordinator_ = Start({kCoxswain, "serve", "--listen", address_,
                          "--state-dir", folder_.path("state")});
  }

  absl::Duration RandomUpTo(absl::Duration most) {
    return most * random_.Uniform(draws_++);
  }

  // Collects the job's output meanwhile. Returns false once it has ended.
  bool Pass(Process& job, absl::Duration time) {
    return absl::IsDeadlineExceeded(job.WaitForStdout("(never printed)", time));
  }

  // Until rank 0 has reported once more: then all work with the coordinator.
  // False once the job has ended.
  bool WaitForProgress(Process& job) {
    const auto digests = DigestsByRank(job.out());
    const auto of_rank_0 = digests.find(0);
    const int64_t last =
        of_rank_0 == digests.end() ? 0 : of_rank_0->second.rbegin()->first;
    const absl::Status status = job.WaitForStdout(
        absl::StrCat("rank 0 step ", last + kReportEvery, " "), kTimeout);
    EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << status;
    return status.ok();
  }

  // Lets one coordinator run, kills it, and starts the next one. Returns false
  // if the job ended.
  bool KillOnce(Process& job) {
    if (random_.Bits(draws_++) % 2 == 0 || in_a_row_ >= kMostInARow) {
      in_a_row_ = 0;
      if (!WaitForProgress(job)) return false;
    } else {
      ++in_a_row_;
    }
    if (!Pass(job, RandomUpTo(kLongestLife))) return false;
    coordinator_->Signal(SIGKILL);
    EXPECT_OK(coordinator_->Wait(kTimeout));
    Pass(job, RandomUpTo(kLongestGap));
    Serve();
    ++kills_;
    return true;
  }

  void ExpectUndisturbed(const Ended& job, const Ended& reference) {
    EXPECT_EQ(job.status, 0) << job.err;
    EXPECT_EQ(DigestsByRank(job.out), DigestsByRank(reference.out));
    // Each line appears once: no step was made twice, no process began again.
    EXPECT_THAT(LinesWith(job.out, " digest "),
                SizeIs(kRanks * kSteps / kReportEvery));
    EXPECT_THAT(LinesWith(job.out, " pid "), SizeIs(kRanks)) << job.out;
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_THAT(PrintedBy(rank, "done", job.out), SizeIs(1));
    }
  }

  const std::string address_;
  const CounterRandom random_;
  uint64_t draws_ = 0;
  TemporaryFolder folder_;
  std::unique_ptr<Process> coordinator_;
  int kills_ = 0;
  int in_a_row_ = 0;
};

TEST_F(CoordinatorKillTest, JobsEndAsIfNothingHadHappened) {
  const int wanted = static_cast<int>(FromEnvironment("COORDINATOR_KILLS", 20));
  const Ended reference = RunToEnd(Job({}));
  ASSERT_EQ(reference.status, 0) << reference.err;
  ASSERT_THAT(DigestsByRank(reference.out), SizeIs(kRanks));
  Serve();
  size_t reattached = 0;
  for (int number = 0; kills_ < wanted && !HasFailure(); ++number) {
    SCOPED_TRACE(absl::StrCat("job ", number, ", after ", kills_, " kills"));
    auto job = Start(
        Job({"--job", absl::StrCat("job", number), "--coordinator", address_}));
    while (kills_ < wanted && KillOnce(*job)) {
    }
    const Ended ended = EndOf(*job);
    ExpectUndisturbed(ended, reference);
    reattached += LinesWith(ended.err, " reattached ").size();
  }
  RecordProperty("kills", kills_);
  RecordProperty("reattached", static_cast<int>(reattached));
  std::printf("%d kills, %zu times a rank has come back\n", kills_, reattached);
  EXPECT_GE(reattached, static_cast<size_t>(wanted) / 2);
  coordinator_->Signal(SIGTERM);
  ASSERT_OK_AND_ASSIGN(const Process::Exit exit, coordinator_->Wait(kTimeout));
  EXPECT_EQ(exit.Status(), 0) << coordinator_->err();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
