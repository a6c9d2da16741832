#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Trains; at every fourth micro-batch, in the middle of windows of three, each
// rank evaluates on its own number of micro-batches.
Ended Train(const std::vector<std::string>& options) {
  std::vector<std::string> all = {"--steps", "8",        "--accumulate",
                                  "3",       "--digest", "--windows"};
  all.insert(all.end(), options.begin(), options.end());
  return RunToEnd(Launcher({"--nproc", "3"}, all));
}

TEST(EvaluationTest, InsideTrainingDoesNotDisturbTheCount) {
  const Ended plain = Train({});
  const Ended job = Train({"--evaluate-every", "4"});
  EXPECT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(job.status, 0) << job.err;
  const auto digests = DigestsByRank(job.out);
  ASSERT_THAT(digests, SizeIs(3));
  EXPECT_EQ(digests, DigestsByRank(plain.out));
  EXPECT_EQ(digests.at(0), digests.at(1));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(PrintedBy(rank, "window", job.out),
              PrintedBy(rank, "window", plain.out));
    EXPECT_THAT(PrintedBy(rank, "window", job.out), SizeIs(8));
    EXPECT_THAT(PrintedBy(rank, "window", job.out),
                Each(HasSubstr(" of 3/3 ")));
    EXPECT_THAT(PrintedBy(rank, "evaluates", job.out), SizeIs(6));
  }
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

// What happens where evaluation counts as training.
TEST(EvaluationTest, InTheStreamOfTrainingItIsAnErrorAndNotAHang) {
  const Ended job =
      Train({"--evaluate-every", "4", "--evaluation-stream", "train"});
  EXPECT_EQ(job.status, 1);
  const auto errors = LinesWith(job.err, "toy_worker: ");
  EXPECT_THAT(errors, SizeIs(3)) << job.err;
  // The windows end where no two ranks evaluate alike.
  EXPECT_THAT(errors, Each(HasSubstr("ranks differ: step: 1 on rank 0, 2 on "
                                     "ranks 1, 2")));
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
