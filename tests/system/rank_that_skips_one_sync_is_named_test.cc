#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "schedule/terms.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SkippedSyncTest : public testing::TestWithParam<const char*> {
 protected:
  // Three ranks for ten steps, of which rank 1 leaves out the exchange of one.
  Ended Train(int skipped) {
    return RunToEnd(Launcher(
        {"--nproc", "3", "--job", "rows", "--coordinator",
         coordinator_.address()},
        {"--steps", "10", "--skip-sync-at", absl::StrCat("1:", skipped),
         "--term", absl::StrCat("enforcement=", GetParam())}));
  }

  ServedCoordinator coordinator_;
};

TEST_P(SkippedSyncTest, InMidTraining) {
  const Ended job = Train(4);
  EXPECT_EQ(job.status, 1);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(PrintedBy(rank, "step 4", job.out), SizeIs(1)) << job.out;
    EXPECT_THAT(PrintedBy(rank, "step 5", job.out), IsEmpty());
    EXPECT_THAT(PrintedBy(rank, "step 6", job.out), IsEmpty());
  }
  EXPECT_THAT(PrintedBy(1, "leaves out step 4", job.out), SizeIs(1));
  const auto errors = LinesWith(job.err, "toy_worker: ");
  EXPECT_THAT(errors, SizeIs(3)) << job.err;
  const auto named = HasSubstr(
      "step 4 of stream \"train\": ranks differ: step: 5 on rank 1, 4 "
      "on ranks 0, 2; rank 1 skipped an exchange that the others made");
  EXPECT_THAT(errors, Each(named));
  EXPECT_THAT(coordinator_.Stop(), HasSubstr("rank 1 skipped an exchange"));
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

// Nothing that it announces gives it away: it goes before the others.
TEST_P(SkippedSyncTest, AtTheEndOfTraining) {
  const Ended job = Train(9);
  EXPECT_EQ(job.status, 1);
  EXPECT_THAT(PrintedBy(1, "done", job.out), SizeIs(1)) << job.out;
  for (const int rank : {0, 2}) {
    EXPECT_THAT(PrintedBy(rank, "step 9", job.out), SizeIs(1)) << job.out;
    EXPECT_THAT(PrintedBy(rank, "step 10", job.out), IsEmpty());
    EXPECT_THAT(PrintedBy(rank, "done", job.out), IsEmpty());
  }
  const auto errors = LinesWith(job.err, "toy_worker: ");
  EXPECT_THAT(errors, SizeIs(2)) << job.err;
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1"), HasSubstr("left"))));
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Enforcement, SkippedSyncTest,
                         testing::Values("audit", "strict"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace coxswain
