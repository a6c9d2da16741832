#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"
#include "tests/system/toy/toy_dump.h"
#include "tests/system/toy/toy_reference.h"

namespace coxswain::plan_change_lands_on_the_same_step_everywhere_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kRanks = 3;

class PlanChangeTest : public testing::Test {
 protected:
  std::unique_ptr<Process> StartJob(std::vector<std::string> options) {
    options.insert(options.end(),
                   {"--accumulate", "2", "--digest", "--windows"});
    return Start(Launcher({"--nproc", absl::StrCat(kRanks), "--job", "rows",
                           "--coordinator", coordinator_.address()},
                          options));
  }

  // `coxswain plan ...` as a user types it; what it prints.
  std::string Plan(const std::vector<std::string>& words) {
    std::vector<std::string> command = {kCoxswain, "plan"};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--coordinator", coordinator_.address()});
    const Ended ended = RunToEnd(command);
    EXPECT_EQ(ended.status, 0) << ended.err;
    return ended.out;
  }

  // Waits until all ranks have taken over this version of the plan.
  static absl::Status WaitForPlan(Process& job, int version) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const absl::Status status = job.WaitForStdout(
          absl::StrCat("rank ", rank, " plan ", version, " from step "),
          kTimeout);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Returns the changes of plan that a rank has seen: the same on all.
  static std::vector<std::string> Changes(const std::string& out) {
    const std::vector<std::string> changes = PrintedBy(0, "plan", out);
    for (int rank = 1; rank < kRanks; ++rank) {
      EXPECT_EQ(PrintedBy(rank, "plan", out), changes) << "rank " << rank;
    }
    return changes;
  }

  static void ExpectAlike(const std::string& out) {
    const auto digests = DigestsByRank(out);
    ASSERT_THAT(digests, SizeIs(kRanks));
    for (const auto& [rank, steps] : digests) {
      EXPECT_EQ(steps, digests.begin()->second) << "rank " << rank;
    }
  }

  ServedCoordinator coordinator_;
};

// Returns the version and the window that a step was exchanged with, from the
// output of rank R.
std::string WindowOf(int rank, int64_t step, const std::string& out) {
  const auto lines =
      PrintedBy(rank, absl::StrCat("window ", step, " of "), out);
  return lines.empty() ? "" : lines[0];
}

std::vector<ToyBatch> BatchesOf(int step, int accumulation) {
  std::vector<ToyBatch> batches;
  for (int i = 0; i < accumulation * kRanks; ++i) {
    ToyBatch batch;
    batch.step = step;
    batch.micro = i / kRanks;
    batch.rank = i % kRanks;
    batches.push_back(batch);
  }
  return batches;
}

// From which step on "plan V from step S: ..." is in force.
int64_t StepOf(const std::string& change) {
  int64_t step = -1;
  const std::vector<std::string> words = absl::StrSplit(change, ' ');
  if (words.size() > 4) {
    EXPECT_TRUE(
        absl::SimpleAtoi(words[4].substr(0, words[4].size() - 1), &step));
  }
  return step;
}

TEST_F(PlanChangeTest, WhileItTrainsOnAndWithoutAPause) {
  // A model that takes its time: all that the job prints is kept.
  const auto job = StartJob({"--steps", "1000000000", "--hidden", "2048"});
  ASSERT_OK(job->WaitForStdout("rank 0 step 20 ", kTimeout));
  ASSERT_THAT(Plan({"set", "rows", "accumulation=4", "at=next"}),
              AllOf(HasSubstr("version 2"), HasSubstr("accumulation 2 -> 4"),
                    HasSubstr("from the next step")));
  ASSERT_OK(WaitForPlan(*job, 2));
  ASSERT_THAT(Plan({"set", "rows", "hook=powersgd(rank=2,start_step=2)",
                    "hook_state=reset"}),
              HasSubstr("version 3"));
  ASSERT_OK(WaitForPlan(*job, 3));
  EXPECT_THAT(Plan({"show", "rows"}),
              AllOf(HasSubstr("version 3"), HasSubstr("powersgd(rank=2")));
  // With the errors that were kept back.
  ASSERT_THAT(Plan({"set", "rows", "hook=fp16(powersgd(rank=2,start_step=2))",
                    "hook_state=carry"}),
              HasSubstr("version 4"));
  ASSERT_OK(WaitForPlan(*job, 4));
  // The end of training is a change like any other.
  ASSERT_THAT(Plan({"set", "rows", "max_steps=1"}), HasSubstr("version 5"));
  const Ended end = EndOf(*job);
  EXPECT_EQ(end.status, 0) << end.err;

  ExpectAlike(end.out);
  const std::vector<std::string> changes = Changes(end.out);
  ASSERT_THAT(
      changes,
      ElementsAre(HasSubstr("accumulation 4 hook allreduce"),
                  HasSubstr("accumulation 4 hook powersgd(rank=2,"),
                  HasSubstr("accumulation 4 hook fp16(powersgd(rank=2,"),
                  HasSubstr("accumulation 4 hook fp16(powersgd(rank=2,")));
  const int64_t step = StepOf(changes[0]);
  EXPECT_GT(step, 20);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(WindowOf(rank, step - 1, end.out),
                AllOf(HasSubstr(" of 2/2 "), HasSubstr("plan 1")));
    EXPECT_THAT(WindowOf(rank, step, end.out),
                AllOf(HasSubstr(" of 4/4 "), HasSubstr("plan 2")));
    EXPECT_THAT(PrintedBy(rank, "done", end.out), SizeIs(1));
    // No rank has gone further than the others.
    EXPECT_THAT(WindowOf(rank, StepOf(changes[3]), end.out), IsEmpty());
  }
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

// Refused where it is proposed: no rank notices.
TEST_F(PlanChangeTest, ThatNoRankCouldCarryOutIsRefused) {
  Latch latch;
  const auto job =
      StartJob({"--hook", "powersgd(rank=2,start_step=2)", "--steps", "6",
                "--wait-at", "3", "--latch", latch.path()});
  ASSERT_OK(job->WaitForStdout("rank 0 at step 3\n", kTimeout));
  const Ended refused = RunToEnd({kCoxswain, "plan", "set", "rows",
                                  "hook=powersgd(rank=4,start_step=2)",
                                  "--coordinator", coordinator_.address()});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("saved 2, here 4"),
                                 HasSubstr("write hook_state=reset")));
  latch.Open();
  const Ended end = EndOf(*job);
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_THAT(Changes(end.out), IsEmpty());
}

TEST_F(PlanChangeTest, AtTheStepThatWasAskedForAndNotBefore) {
  Latch latch;
  const TemporaryFolder folder;
  const auto job =
      StartJob({"--steps", "20", "--wait-at", "3", "--latch", latch.path(),
                "--dtype", "float64", "--dump", folder.path("dump")});
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_OK(job->WaitForStdout(absl::StrCat("rank ", rank, " at step 3\n"),
                                 kTimeout));
  }
  EXPECT_THAT(Plan({"set", "rows", "accumulation=3", "at=12"}),
              HasSubstr("from step 12"));
  EXPECT_THAT(Plan({"show", "rows"}),
              AllOf(HasSubstr("version 1 of its plan"),
                    HasSubstr("version 2 begins with step 12")));
  latch.Open();
  const Ended end = EndOf(*job);
  EXPECT_EQ(end.status, 0) << end.err;
  ExpectAlike(end.out);
  EXPECT_THAT(
      Changes(end.out),
      ElementsAre("plan 2 from step 12: accumulation 3 hook allreduce"));
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(WindowOf(rank, 11, end.out), HasSubstr(" of 2/2 "));
    EXPECT_THAT(WindowOf(rank, 12, end.out), HasSubstr(" of 3/3 "));
  }
  std::vector<std::vector<ToyBatch>> steps;
  for (int step = 0; step < 20; ++step) {
    steps.push_back(BatchesOf(step, step < 12 ? 2 : 3));
  }
  ASSERT_OK_AND_ASSIGN(const ToyDump dump, ReadToyDump(folder.path("dump")));
  EXPECT_LE(ToyReference().Follow(dump, 0, steps), 1e-12);
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain::plan_change_lands_on_the_same_step_everywhere_test
