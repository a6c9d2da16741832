#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"
#include "tests/system/toy/toy_dump.h"
#include "tests/system/toy/toy_reference.h"

namespace coxswain::global_batch_is_kept_when_4_become_3_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kGlobalBatch = 8;  // micro-batches: 4 ranks with 2 each
constexpr int kSavedAt = 5;
constexpr int kBatchSteps = 12;

std::vector<std::vector<ToyBatch>> GlobalBatches(int first, int last) {
  std::vector<std::vector<ToyBatch>> steps;
  for (int step = first; step < last; ++step) {
    std::vector<ToyBatch> batches(kGlobalBatch);
    for (int i = 0; i < kGlobalBatch; ++i) {
      batches[static_cast<size_t>(i)].step = step;
      batches[static_cast<size_t>(i)].micro = i;
    }
    steps.push_back(batches);
  }
  return steps;
}

class GlobalBatchTest : public testing::Test {
 protected:
  std::unique_ptr<Process> StartJob(int workers, const std::string& on_resize,
                                    const std::string& dump,
                                    std::vector<std::string> options) {
    options.insert(
        options.end(),
        {"--accumulate", "2", "--global-data", "--term",
         "on_resize=" + on_resize, "--term", "uneven_data=wait_for_all",
         "--steps", absl::StrCat(kBatchSteps), "--dtype", "float64", "--digest",
         "--windows", "--dump", folder_.path(dump)});
    return Start(Launcher({"--nproc", absl::StrCat(workers), "--job", "rows",
                           "--coordinator", coordinator_.address()},
                          options));
  }

  // Four ranks save after kSavedAt steps; then one of them dies.
  void TrainUntilARankIsLost(const std::string& on_resize) {
    Latch latch;
    const auto job =
        StartJob(4, on_resize, "before",
                 {"--save-at", absl::StrCat(kSavedAt), "--wait-at",
                  absl::StrCat(kSavedAt), "--latch", latch.path()});
    for (int rank = 0; rank < 4; ++rank) {
      ASSERT_OK(job->WaitForStdout(
          absl::StrCat("rank ", rank, " at step ", kSavedAt), kTimeout));
      EXPECT_THAT(PrintedBy(rank, "window", job->out()),
                  Each(HasSubstr(" of 2/2 ")));
    }
    ASSERT_EQ(kill(PidsByRank(job->out()).at(3), SIGKILL), 0);
    latch.Open();
    EXPECT_EQ(EndOf(*job).status, 128 + SIGKILL);
  }

  // Three ranks go on from the checkpoint, with windows of these lengths.
  void ResumeWithThree(const std::string& on_resize,
                       const std::vector<int>& windows) {
    const Ended job = EndOf(*StartJob(3, on_resize, "after", {"--restore"}));
    EXPECT_EQ(job.status, 0) << job.err;
    for (int rank = 0; rank < 3; ++rank) {
      const int window = windows[static_cast<size_t>(rank)];
      const auto lines = PrintedBy(rank, "window", job.out);
      EXPECT_THAT(lines, SizeIs(kBatchSteps - kSavedAt));
      EXPECT_THAT(
          lines,
          Each(HasSubstr(absl::StrCat(" of ", window, "/", window, " "))));
    }
    const auto digests = DigestsByRank(job.out);
    ASSERT_THAT(digests, SizeIs(3));
    EXPECT_EQ(digests.at(0), digests.at(1));
    EXPECT_EQ(digests.at(0), digests.at(2));
  }

  ToyDump Dumped(const std::string& file) {
    auto dump = ReadToyDump(folder_.path(file));
    EXPECT_OK(dump);
    return std::move(dump).value_or(ToyDump());
  }

  ServedCoordinator coordinator_;
  TemporaryFolder folder_;
};

TEST_F(GlobalBatchTest, IsKeptWhen4Become3) {
  ASSERT_NO_FATAL_FAILURE(TrainUntilARankIsLost("keep_global_batch"));
  ResumeWithThree("keep_global_batch", {3, 3, 2});
  // As one process would have done it that nothing had happened to.
  ToyReference reference;
  EXPECT_LE(reference.Follow(Dumped("before"), 0, GlobalBatches(0, kSavedAt)),
            1e-12);
  const ToyDump after = Dumped("after");
  EXPECT_THAT(StepsOf(after), ElementsAre(5, 6, 7, 8, 9, 10, 11));
  EXPECT_LE(
      reference.Follow(after, kSavedAt, GlobalBatches(kSavedAt, kBatchSteps)),
      1e-12);
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

TEST_F(GlobalBatchTest, UnlessThePlanKeepsTheLocalOne) {
  ASSERT_NO_FATAL_FAILURE(TrainUntilARankIsLost("keep_local_batch"));
  ResumeWithThree("keep_local_batch", {2, 2, 2});
  ToyReference reference;
  reference.Follow(Dumped("before"), 0, GlobalBatches(0, kSavedAt));
  EXPECT_GT(reference.Follow(Dumped("after"), kSavedAt,
                             GlobalBatches(kSavedAt, kBatchSteps)),
            1e-2);
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain::global_batch_is_kept_when_4_become_3_test
