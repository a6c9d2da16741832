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

using testing::IsEmpty;
using testing::SizeIs;

constexpr int kRanks = 3;
constexpr int kAccumulate = 2;
constexpr int kWeightedSteps = 6;
// In turns, so that no two steps have the same.
const std::vector<int> kTokens = {1, 13, 5, 2, 8, 3, 21};

// Returns all micro-batches of all ranks in each step.
std::vector<std::vector<ToyBatch>> BigBatches() {
  std::vector<std::vector<ToyBatch>> steps(kWeightedSteps);
  for (int n = 0; n < kWeightedSteps * kAccumulate; ++n) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ToyBatch batch;
      batch.step = n / kAccumulate;
      batch.micro = n % kAccumulate;
      batch.rank = rank;
      batch.samples =
          kTokens[static_cast<size_t>(n * kRanks + rank) % kTokens.size()];
      steps[static_cast<size_t>(batch.step)].push_back(batch);
    }
  }
  return steps;
}

// Returns the largest difference of the job's gradients from those of the big
// batches.
double Difference(const std::string& weighting, const std::string& dtype) {
  const TemporaryFolder folder;
  const Ended job = RunToEnd(
      Launcher({"--nproc", absl::StrCat(kRanks)},
               {"--steps", absl::StrCat(kWeightedSteps), "--accumulate",
                absl::StrCat(kAccumulate), "--samples",
                absl::StrJoin(kTokens, ","), "--term", "weighting=" + weighting,
                "--dtype", dtype, "--digest", "--dump", folder.path("dump")}));
  EXPECT_EQ(job.status, 0) << job.err;
  const auto digests = DigestsByRank(job.out);
  EXPECT_THAT(digests, SizeIs(kRanks));
  for (const auto& [rank, steps] : digests) {
    EXPECT_EQ(steps, digests.begin()->second) << "rank " << rank;
  }
  const auto dump = ReadToyDump(folder.path("dump"));
  EXPECT_OK(dump);
  if (!dump.ok()) return 0;
  EXPECT_THAT(StepsOf(*dump), SizeIs(kWeightedSteps));
  ToyModelOptions model;
  if (dtype == "float64") model.dtype = DType::kFloat64;
  return ToyReference(model).Follow(*dump, 0, BigBatches());
}

TEST(TokenWeightedAccumulationTest, EqualsOneBigBatch) {
  const double exact = Difference("tokens", "float64");
  const double single = Difference("tokens", "float32");
  std::printf("relative difference: float64 %.2g, float32 %.2g\n", exact,
              single);
  EXPECT_LE(exact, 1e-12);
  EXPECT_LE(single, 1e-6);
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

TEST(TokenWeightedAccumulationTest, TheMeanOfMeansDoesNot) {
  EXPECT_GT(Difference("mean", "float64"), 1e-2);
}

}  // namespace
}  // namespace coxswain
