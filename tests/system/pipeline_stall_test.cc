// Pipelines of real processes of which one is stopped, or killed.

#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"
#include "tests/support/environment.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Json = nlohmann::json;
using Words = std::vector<std::string>;

class PipelineTest : public testing::Test {
 protected:
  std::unique_ptr<Process> StartJob(int workers, const Words& options,
                                    const std::string& job = "gpt") {
    Words command = {kCoxswain,
                     "run",
                     "--nproc",
                     absl::StrCat(workers),
                     "--job",
                     job,
                     "--coordinator",
                     coordinator_.address(),
                     "--exit-grace",
                     "20s",
                     "--",
                     "tests/system/toy/pipeline_toy"};
    command.insert(command.end(), options.begin(), options.end());
    return Start(std::move(command));
  }

  // Returns the answer of `coxswain why`; null: there is none yet.
  Json Why() {
    const Ended why = RunToEnd({kCoxswain, "why", "gpt", "--json",
                                "--coordinator", coordinator_.address()});
    Json json = Json::parse(why.out, nullptr, false);
    return json.is_discarded() ? Json() : json;
  }
  static std::string FindingsOf(const Json& why) {
    Words findings;
    if (why.is_object()) findings = why["findings"].get<Words>();
    return absl::StrJoin(findings, "\n");
  }

  // Asks until a finding has all these words.
  bool AwaitFinding(const Words& words) {
    const absl::Time deadline = Clock::Real()->Now() + kTimeout;
    std::string last;
    while (Clock::Real()->Now() < deadline) {
      last = FindingsOf(Why());
      bool all = true;
      for (const std::string& word : words) {
        all = all && last.find(word) != std::string::npos;
      }
      if (all) return true;
    }
    ADD_FAILURE() << "the last findings: " << last;
    return false;
  }

  ServedCoordinator coordinator_;
  Latch latch_;
};

// Ranks 0 to 5 are (pp 0, dp 0), (pp 0, dp 1), (pp 1, dp 0), ...
constexpr char kMesh[] = "pp=3,dp=2";
constexpr int kRanks = 6;
constexpr int kStopped = 2;

class StoppedStageTest : public PipelineTest {
 protected:
  // Rank 2 stays in 1F1 of step 2, and is stopped there once all others wait.
  void StopAStage(const std::string& progress_timeout) {
    job_ =
        StartJob(kRanks, {"--mesh", kMesh, "--micro-batches", "4", "--latch",
                          latch_.path(), "--wait-rank", absl::StrCat(kStopped),
                          "--wait-step", "2", "--wait-micro", "1", "--term",
                          "progress_timeout=" + progress_timeout});
    ASSERT_OK(job_->WaitForStdout("rank 2 within 1F1 of step 2\n", kTimeout));
    pids_ = PidsByRank(job_->out());
    ASSERT_THAT(pids_, SizeIs(kRanks));
    ASSERT_TRUE(AwaitFinding(
        {"stage 1 (rank 2: pp 1, dp 0; ", " in 1F1", "5 ranks wait for it"}));
    ASSERT_EQ(kill(pids_.at(kStopped), SIGSTOP), 0);
  }

  // All others end with an error that has these words.
  void ExpectError(const Words& words) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == kStopped) continue;
      EXPECT_TRUE(WaitUntilEnded(pids_.at(rank), kTimeout)) << "rank " << rank;
    }
    kill(pids_.at(kStopped), SIGKILL);
    const Ended end = EndOf(*job_);
    EXPECT_EQ(end.status, 1) << end.err;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == kStopped) continue;
      const Words errors = PrintedBy(rank, "error ", end.out);
      ASSERT_THAT(errors, SizeIs(1)) << "rank " << rank << "\n" << end.out;
      EXPECT_THAT(errors[0], HasSubstr("error ABORTED "));
      for (const std::string& word : words) {
        EXPECT_THAT(errors[0], HasSubstr(word)) << "rank " << rank;
      }
    }
    EXPECT_THAT(StrayProcesses({coordinator_.process().pid()}), IsEmpty());
  }

  std::unique_ptr<Process> job_;
  std::map<int, pid_t> pids_;
};

TEST_F(StoppedStageTest, IsNamedWithItsActionItsHostAndWhoWaitsForIt) {
  ASSERT_NO_FATAL_FAILURE(StopAStage("8s"));
  const Words words = {"stage 1 (rank 2: pp 1, dp 0; " + ThisHost() + "/2)",
                       " in 1F1", "5 ranks wait for it", "look at rank 2"};
  ExpectError(words);
  const Json why = Why();
  ASSERT_TRUE(why.is_object());
  EXPECT_EQ(why["state"], "ended");
  EXPECT_EQ(why["odd_ranks"], Json({kStopped}));
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    EXPECT_THAT(FindingsOf(why), HasSubstr(words[i]));
  }
  EXPECT_EQ(why["ranks"][kStopped]["pipeline"]["action"], "1F1");
  const Ended text = RunToEnd(
      {kCoxswain, "why", "gpt", "--coordinator", coordinator_.address()});
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("5 ranks wait for it"), HasSubstr("WAITS FOR")));
}

// Its lease ends before the stall is one.
TEST_F(StoppedStageTest, WhoseLeaseRunsOutIsLostWithWhatItWasIn) {
  ASSERT_NO_FATAL_FAILURE(StopAStage("10m"));
  ExpectError({"rank 2 (pp 1, dp 0; ", "no sign of life",
               "it was in 1F1 of its pipeline, and 5 ranks waited for it"});
}

TEST_F(PipelineTest, StepsEndWithTheSumsOfAllStages) {
  const auto job = StartJob(4, {"--steps", "5", "--micro-batches", "3"});
  const Ended end = EndOf(*job);
  EXPECT_EQ(end.status, 0) << end.err;
  for (int rank = 2; rank < 4; ++rank) {
    for (int step = 0; step < 5; ++step) {
      EXPECT_THAT(
          PrintedBy(rank, absl::StrCat("step ", step, " "), end.out),
          Each(HasSubstr(absl::StrCat("sum ", 2 * (1 + 2 + 3) + 3 * step))));
    }
    EXPECT_THAT(PrintedBy(rank, "ended", end.out), SizeIs(1));
  }
}

// KILLS comes from the environment of the targets, and the SEED of another run
// from --test_env.
TEST_F(PipelineTest, AfterARandomKillAllOthersEndWithTheLoss) {
  const int64_t kills = FromEnvironment("KILLS", 5);
  const CounterRandom random(static_cast<uint64_t>(FromEnvironment("SEED", 1)),
                             /*stream=*/1);
  const char* const kinds[] = {"1f1b", "gpipe", "interleaved(chunks=2)"};
  uint64_t draws = 0;
  const auto pick = [&](uint64_t below) {
    return random.Bits(draws++) % below;
  };
  for (int64_t done = 0; done < kills; ++done) {
    const auto job =
        StartJob(4,
                 {"--steps", "1000000", "--pipeline", kinds[pick(3)],
                  "--pass-ms", absl::StrCat(pick(3))},
                 absl::StrCat("gpt-", done));
    const auto seen = static_cast<int>(pick(4));
    ASSERT_OK(job->WaitForStdout(
        absl::StrCat("rank ", seen, " step ", pick(20), " "), kTimeout));
    // Somewhere in a step: nothing prints this.
    (void)job->WaitForStdout("a line that does not come",
                             absl::Microseconds(pick(10000)));
    const std::map<int, pid_t> pids = PidsByRank(job->out());
    ASSERT_THAT(pids, SizeIs(4));
    const auto victim = static_cast<int>(pick(4));
    ASSERT_EQ(kill(pids.at(victim), SIGKILL), 0);
    const Ended end = EndOf(*job);
    EXPECT_EQ(end.status, 128 + SIGKILL) << end.err;
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      const Words errors = PrintedBy(rank, "error ", end.out);
      ASSERT_THAT(errors, SizeIs(1)) << "kill " << done << " of rank " << victim
                                     << ": rank " << rank << "\n"
                                     << end.err;
      EXPECT_THAT(errors[0],
                  AllOf(HasSubstr("error ABORTED "),
                        HasSubstr(absl::StrCat("rank ", victim, " (pp ")),
                        HasSubstr("was lost")))
          << "kill " << done;
    }
    // What the coordinator logs is read, so that its pipe does not fill up.
    (void)coordinator_.process().WaitForStderr("a line that does not come",
                                               absl::Milliseconds(1));
  }
  EXPECT_THAT(StrayProcesses({coordinator_.process().pid()}), IsEmpty());
}

}  // namespace
}  // namespace coxswain
