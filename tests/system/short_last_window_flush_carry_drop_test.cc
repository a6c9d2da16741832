#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"
#include "tests/system/toy/toy_dump.h"
#include "tests/system/toy/toy_reference.h"

namespace coxswain::short_last_window_flush_carry_drop_test {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr int kRanks = 2;
constexpr int kBatches = 7;  // in an epoch, with windows of 3
constexpr int kEpochs = 2;

struct Case {
  std::string tail;
  // How many micro-batches each step has, and how many are forgotten at the
  // end of an epoch.
  std::vector<int> windows;
  int dropped;
};

std::ostream& operator<<(std::ostream& out, const Case& test) {
  return out << test.tail;
}

std::vector<std::vector<ToyBatch>> BatchesOf(const Case& test) {
  std::vector<std::vector<ToyBatch>> steps;
  int64_t next = 0;
  for (const int window : test.windows) {
    if (next % kBatches + test.dropped == kBatches) next += test.dropped;
    std::vector<ToyBatch> step;
    for (int i = 0; i < window; ++i, ++next) {
      for (int rank = 0; rank < kRanks; ++rank) {
        ToyBatch batch;
        batch.step = next;
        batch.rank = rank;
        step.push_back(batch);
      }
    }
    steps.push_back(step);
  }
  return steps;
}

class ShortLastWindowTest : public testing::TestWithParam<Case> {
 protected:
  void Check(const std::vector<std::string>& options) {
    const Case& test = GetParam();
    const TemporaryFolder folder;
    std::vector<std::string> all = {"--batches",         absl::StrCat(kBatches),
                                    "--epochs",          absl::StrCat(kEpochs),
                                    "--accumulate",      "3",
                                    "--steps",           "1000",
                                    "--dtype",           "float64",
                                    "--digest",          "--dump",
                                    folder.path("dump"), "--term",
                                    "tail=" + test.tail};
    all.insert(all.end(), options.begin(), options.end());
    const Ended job =
        RunToEnd(Launcher({"--nproc", absl::StrCat(kRanks)}, all));
    EXPECT_EQ(job.status, 0) << job.err;
    const auto digests = DigestsByRank(job.out);
    ASSERT_THAT(digests, SizeIs(kRanks));
    EXPECT_EQ(digests.at(0), digests.at(1));
    ASSERT_OK_AND_ASSIGN(const ToyDump dump, ReadToyDump(folder.path("dump")));
    EXPECT_THAT(StepsOf(dump), SizeIs(test.windows.size()));
    EXPECT_LE(ToyReference().Follow(dump, 0, BatchesOf(test)), 1e-12);
    EXPECT_THAT(StrayProcesses(), IsEmpty());
  }
};

TEST_P(ShortLastWindowTest, WhereTheLengthIsKnown) {
  Check({"--announce-length"});
}

TEST_P(ShortLastWindowTest, WhereTheDataEndsUnannounced) { Check({}); }

INSTANTIATE_TEST_SUITE_P(Tails, ShortLastWindowTest,
                         testing::Values(Case{"flush", {3, 3, 1, 3, 3, 1}, 0},
                                         // The last two of all wait for more.
                                         Case{"carry", {3, 3, 3, 3}, 0},
                                         Case{"drop", {3, 3, 3, 3}, 1}),
                         [](const auto& info) { return info.param.tail; });

}  // namespace
}  // namespace coxswain::short_last_window_flush_carry_drop_test
