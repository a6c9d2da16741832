#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kProgressTimeout = absl::Seconds(2);
// What it may take on top until the other ranks have ended.
constexpr absl::Duration kMargin = absl::Seconds(5);
constexpr int kStalledAt = 5;

class StalledRankTest : public testing::Test {
 protected:
  // Three ranks, of which rank 1 stops at step 5 until the latch is opened.
  std::unique_ptr<Process> StartJob(const std::string& fault,
                                    const std::string& on_stall) {
    return Start(
        Launcher({"--nproc", "3", "--job", "rows", "--coordinator",
                  coordinator_.address(), "--exit-grace", "1s"},
                 {"--steps", "10", "--digest", "--latch", latch_.path(), fault,
                  absl::StrCat("1:", kStalledAt), "--term",
                  "progress_timeout=" + absl::FormatDuration(kProgressTimeout),
                  "--term", "on_stall=" + on_stall}));
  }

  Ended Why(const std::vector<std::string>& options) {
    std::vector<std::string> command = {
        kCoxswain, "why", "rows", "--coordinator", coordinator_.address()};
    command.insert(command.end(), options.begin(), options.end());
    return RunToEnd(command);
  }

  // Returns the outliers that `coxswain why` names, and its first finding.
  std::vector<int> Outliers(std::string* finding) {
    const Ended why = Why({"--json"});
    EXPECT_EQ(why.status, 0) << why.err;
    const auto json = nlohmann::json::parse(why.out, nullptr, false);
    std::vector<int> outliers;
    if (json.is_discarded()) return outliers;
    for (const auto& rank : json["ranks"]) {
      if (rank["odd"]) outliers.push_back(rank["rank"]);
    }
    if (!json["findings"].empty()) *finding = json["findings"][0];
    return outliers;
  }

  // The others end in time with an error that names rank 1, in `words`.
  void ExpectNamed(Process& job, const std::string& words) {
    ASSERT_OK(job.WaitForStdout(" step 5\n", kTimeout));
    const absl::Time stalled = Clock::Real()->Now();
    const std::map<int, pid_t> pids = PidsByRank(job.out());
    ASSERT_THAT(pids, SizeIs(3));
    EXPECT_TRUE(WaitUntilEnded(pids.at(0), kTimeout));
    EXPECT_TRUE(WaitUntilEnded(pids.at(2), kTimeout));
    const absl::Duration took = Clock::Real()->Now() - stalled;
    std::printf("others_ended_after: %.3f s\n", absl::ToDoubleSeconds(took));
    EXPECT_GE(took, kProgressTimeout - absl::Milliseconds(500));
    EXPECT_LT(took, kProgressTimeout + kMargin);
    latch_.Open();
    const Ended end = EndOf(job);
    EXPECT_EQ(end.status, 1) << end.err;
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(PrintedBy(rank, "step 6", end.out), IsEmpty());
    }
    const auto errors = LinesWith(end.err, "toy_worker: ");
    EXPECT_THAT(errors, SizeIs(testing::Ge(2))) << end.err;
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1 "), HasSubstr(words),
                                   HasSubstr("step 5"))));
    const Ended why = Why({});
    EXPECT_EQ(why.status, 0) << why.err;
    EXPECT_THAT(why.out, AllOf(HasSubstr("job rows: ended"),
                               HasSubstr("rank 1 "), HasSubstr(words)));
    std::string finding;
    EXPECT_THAT(Outliers(&finding), ElementsAre(1)) << why.out;
    EXPECT_THAT(coordinator_.Stop(), AllOf(HasSubstr("rank 1 ")));
    EXPECT_THAT(StrayProcesses(), IsEmpty());
  }

  ServedCoordinator coordinator_;
  Latch latch_;
};

TEST_F(StalledRankTest, BeforeItsExchange) {
  const auto job = StartJob("--stall-at", "abort");
  ASSERT_OK(
      job->WaitForStdout("rank 1 before the exchange of step 5\n", kTimeout));
  ExpectNamed(*job, "rank 1 has not announced it");
}

// All have announced it and all agree: only the progress of the exchange shows
// the stall.
TEST_F(StalledRankTest, WithinAnExchange) {
  const auto job = StartJob("--hang-in-exchange", "abort");
  ASSERT_OK(job->WaitForStdout("rank 1 within step 5\n", kTimeout));
  ExpectNamed(*job, "collectives started: 14 on rank 1, 15 on ranks 0, 2");
}

TEST_F(StalledRankTest, AWarningNamesItAndTheJobGoesOn) {
  const auto job = StartJob("--stall-at", "warn");
  ASSERT_OK(
      job->WaitForStdout("rank 1 before the exchange of step 5\n", kTimeout));
  const std::string words = "rank 1 has not announced it";
  ASSERT_OK(coordinator_.process().WaitForStderr(words, kTimeout));
  ASSERT_OK(job->WaitForStderr(words, kTimeout));

  std::string finding;
  EXPECT_THAT(Outliers(&finding), ElementsAre(1));
  EXPECT_THAT(finding, HasSubstr("rank 1"));
  const Ended why = Why({});
  EXPECT_THAT(why.out, AllOf(HasSubstr("job rows: running"),
                             HasSubstr("the last rounds:")));

  latch_.Open();
  const Ended end = EndOf(*job);
  EXPECT_EQ(end.status, 0) << end.err;
  const auto digests = DigestsByRank(end.out);
  ASSERT_THAT(digests, SizeIs(3));
  EXPECT_THAT(digests.at(0), SizeIs(10));
  EXPECT_EQ(digests.at(0), digests.at(1));
  EXPECT_EQ(digests.at(0), digests.at(2));
  EXPECT_THAT(LinesWith(end.err, words), Contains(HasSubstr("step 5")));
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
