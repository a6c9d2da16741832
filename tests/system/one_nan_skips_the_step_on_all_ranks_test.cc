#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"
#include "tests/system/toy/toy_dump.h"
#include "tests/system/toy/toy_reference.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kRanks = 3;
constexpr int kStepsWithNan = 8;
constexpr int kSkipped = 4;

struct Result {
  Ended job;
  ToyDump dump;
};

class OneNanTest : public testing::Test {
 protected:
  // Three ranks, of which rank 1 is at fault in step kSkipped.
  Result Train(const std::string& hook, const std::vector<std::string>& options,
               const std::string& fault = "--nan-at") {
    const TemporaryFolder folder;
    std::vector<std::string> all = {"--steps", absl::StrCat(kStepsWithNan)};
    all.insert(all.end(),
               {"--dtype", "float64", "--hook", hook, "--digest", "--dump",
                folder.path("dump"), fault, absl::StrCat("1:", kSkipped)});
    all.insert(all.end(), options.begin(), options.end());
    Result result;
    result.job =
        RunToEnd(Launcher({"--nproc", absl::StrCat(kRanks), "--job", "rows",
                           "--coordinator", coordinator_.address()},
                          all));
    auto dump = ReadToyDump(folder.path("dump"));
    EXPECT_OK(dump);
    result.dump = std::move(dump).value_or(ToyDump());
    return result;
  }

  // Returns the line of `coxswain why` on the step that was skipped.
  std::vector<std::string> SkipsInHistory() {
    const Ended why = RunToEnd(
        {kCoxswain, "why", "rows", "--coordinator", coordinator_.address()});
    EXPECT_EQ(why.status, 0) << why.err;
    return LinesWith(why.out, " skip ");
  }

  ServedCoordinator coordinator_;
};

void ExpectSkippedByAll(const Result& result, const std::string& reason) {
  EXPECT_EQ(result.job.status, 0) << result.job.err;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(
        PrintedBy(rank, "skips", result.job.out),
        ElementsAre(AllOf(HasSubstr(absl::StrCat("step ", kSkipped, ": ")),
                          HasSubstr("rank"), HasSubstr(reason))))
        << result.job.out;
    EXPECT_THAT(PrintedBy(rank, "done", result.job.out), SizeIs(1));
  }
  const auto digests = DigestsByRank(result.job.out);
  ASSERT_THAT(digests, SizeIs(kRanks));
  EXPECT_EQ(digests.at(0), digests.at(1));
  EXPECT_EQ(digests.at(0), digests.at(2));
  const auto& steps = digests.at(0);
  ASSERT_THAT(steps, SizeIs(kStepsWithNan));
  EXPECT_EQ(steps.at(kSkipped), steps.at(kSkipped + 1));
  EXPECT_NE(steps.at(kSkipped + 1), steps.at(kSkipped + 2));
}

std::vector<ToyBatch> BatchesOf(int step) {
  std::vector<ToyBatch> batches(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    batches[static_cast<size_t>(rank)].step = step;
    batches[static_cast<size_t>(rank)].rank = rank;
  }
  return batches;
}

// The training is the one that has never had the step.
void ExpectReference(const ToyDump& dump) {
  ToyReference reference;
  for (int step = 0; step < kStepsWithNan; ++step) {
    if (step == kSkipped) continue;
    EXPECT_LE(reference.Follow(dump, step, {BatchesOf(step)}), 1e-12);
  }
  EXPECT_THAT(StepsOf(dump), SizeIs(kStepsWithNan - 1));
}

TEST_F(OneNanTest, TheRankThatSeesItBeforeTheExchangeAsksAllToSkip) {
  const Result result = Train("allreduce", {"--check-gradients"});
  ExpectSkippedByAll(result, "rank 1: a gradient is not finite");
  EXPECT_THAT(SkipsInHistory(),
              ElementsAre(HasSubstr("rank 1: a gradient is not finite")));
  ExpectReference(result.dump);
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

TEST_F(OneNanTest, WhereItIsSeenInTheAverageAllVoteAgainstIt) {
  const Result result = Train("allreduce", {"--term", "commit_vote=true"});
  ExpectSkippedByAll(result, "elements of the average are not finite");
  ExpectReference(result.dump);
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

// The errors that a hook keeps back are those of the step before.
TEST_F(OneNanTest, AHookWithStateIsRolledBack) {
  const std::string hook = "powersgd(rank=2,start_step=2)";
  const Result result = Train(hook, {"--check-gradients"});
  ExpectSkippedByAll(result, "rank 1: a gradient is not finite");
  for (const auto& [key, values] : result.dump) {
    for (const double value : values) ASSERT_TRUE(std::isfinite(value));
  }
  // The same, by a vote after the exchange.
  const Result voted = Train(hook, {"--term", "commit_vote=true"});
  ExpectSkippedByAll(voted, "");
  EXPECT_EQ(result.dump, voted.dump);
  // And where the gradients were finite: none of them is kept back.
  const Result refused = Train(hook, {}, "--refuse-at");
  ExpectSkippedByAll(refused, "rank 1: the loss function failed");
  EXPECT_EQ(result.dump, refused.dump);
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

// The tests above would not notice if a NaN did no harm.
TEST_F(OneNanTest, WithoutTheCheckARankTrainsOnIt) {
  const Result result = Train("allreduce", {});
  EXPECT_EQ(result.job.status, 0) << result.job.err;
  for (const double value : result.dump.at({kSkipped + 1, "layer1.bias"})) {
    EXPECT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace coxswain
