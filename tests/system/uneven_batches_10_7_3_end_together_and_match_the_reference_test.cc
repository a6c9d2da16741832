#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

constexpr int64_t kBatches[] = {10, 7, 3};
constexpr double kExact = 1e-12;  // float64

// Returns the micro-batches of each step: a rank takes part with what it has.
std::vector<std::vector<ToyBatch>> StepsOfEpoch(int epoch, int accumulate,
                                                int64_t steps) {
  std::vector<std::vector<ToyBatch>> result(static_cast<size_t>(steps));
  for (int rank = 0; rank < 3; ++rank) {
    for (int64_t n = 0; n < kBatches[rank] && n / accumulate < steps; ++n) {
      ToyBatch batch;
      batch.rank = rank;
      batch.step = epoch * kBatches[rank] + n;
      result[static_cast<size_t>(n / accumulate)].push_back(batch);
    }
  }
  return result;
}

class UnevenBatchesTest : public testing::Test {
 protected:
  Ended Train(const std::string& uneven_data, int accumulate, int epochs) {
    return RunToEnd(
        Launcher({"--nproc", "3"},
                 {"--batches", absl::StrJoin(kBatches, ","), "--epochs",
                  absl::StrCat(epochs), "--accumulate",
                  absl::StrCat(accumulate), "--steps", "1000", "--dtype",
                  "float64", "--digest", "--dump", folder_.path("dump"),
                  "--term", absl::StrCat("uneven_data=", uneven_data)}));
  }

  ToyDump Dumped() {
    auto dump = ReadToyDump(folder_.path("dump"));
    EXPECT_OK(dump);
    return std::move(dump).value_or(ToyDump());
  }

  static void ExpectTogether(const Ended& job, int epoch, int64_t step) {
    EXPECT_EQ(job.status, 0) << job.err;
    const std::string end =
        absl::StrCat("ends epoch ", epoch, " after step ", step);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(PrintedBy(rank, absl::StrCat("ends epoch ", epoch), job.out),
                  ElementsAre(end));
    }
    const auto digests = DigestsByRank(job.out);
    ASSERT_THAT(digests, SizeIs(3));
    EXPECT_EQ(digests.at(0), digests.at(1));
    EXPECT_EQ(digests.at(0), digests.at(2));
  }

  TemporaryFolder folder_;
};

TEST_F(UnevenBatchesTest, ARankWithoutDataWaitsForAll) {
  for (const int accumulate : {1, 2}) {
    SCOPED_TRACE(absl::StrCat("accumulation ", accumulate));
    const Ended job = Train("wait_for_all", accumulate, 2);
    const int64_t steps = 10 / accumulate;
    // The step which shows that no rank has data counts as one.
    ExpectTogether(job, 0, steps + 1);
    ExpectTogether(job, 1, 2 * (steps + 1));
    const ToyDump dump = Dumped();
    EXPECT_THAT(StepsOf(dump), SizeIs(2 * steps));
    ToyReference reference;
    EXPECT_LE(reference.Follow(dump, 0, StepsOfEpoch(0, accumulate, steps)),
              kExact);
    EXPECT_LE(
        reference.Follow(dump, steps + 1, StepsOfEpoch(1, accumulate, steps)),
        kExact);
    EXPECT_THAT(StrayProcesses(), IsEmpty());
  }
}

TEST_F(UnevenBatchesTest, TheEpochEndsForAllAtTheFirst) {
  const Ended job = Train("end_at_first", 1, 1);
  ExpectTogether(job, 0, 4);
  const ToyDump dump = Dumped();
  EXPECT_THAT(StepsOf(dump), ElementsAre(0, 1, 2));
  EXPECT_LE(ToyReference().Follow(dump, 0, StepsOfEpoch(0, 1, 3)), kExact);
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

TEST_F(UnevenBatchesTest, WithoutItInThePlanItIsAnErrorThatNamesTheRank) {
  const Ended job = Train("refuse", 1, 1);
  EXPECT_EQ(job.status, 1);
  const auto errors = LinesWith(job.err, "toy_worker: ");
  EXPECT_THAT(errors, SizeIs(2)) << job.err;
  EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr("rank 2"),
                                          HasSubstr("uneven_data"))));
  EXPECT_THAT(PrintedBy(0, "step 4", job.out), IsEmpty());
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
