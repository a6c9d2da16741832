#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// After step 4 rank 1 has one bit of one parameter wrong.
std::vector<std::string> Diverging(const std::string& terms) {
  return Launcher({"--nproc", "3"}, {"--steps", "20", "--diverge-at", "1:4",
                                     "--digest", "--term", terms});
}

TEST(SilentDivergenceTest, IsCaughtByTheChecksumAndTheRankIsNamed) {
  const Ended job = RunToEnd(Diverging("checksum_every=3"));
  EXPECT_EQ(job.status, 1);
  const auto digests = DigestsByRank(job.out);
  ASSERT_THAT(digests, SizeIs(3)) << job.out;
  for (int rank = 0; rank < 3; ++rank) {
    // Compared before step 6, which no rank applies.
    EXPECT_EQ(digests.at(rank).rbegin()->first, 6) << "rank " << rank;
  }
  EXPECT_EQ(digests.at(0), digests.at(2));
  EXPECT_EQ(digests.at(0).at(4), digests.at(1).at(4));
  EXPECT_NE(digests.at(0).at(5), digests.at(1).at(5));
  const auto errors = LinesWith(job.err, "toy_worker: ");
  EXPECT_THAT(errors, SizeIs(3)) << job.err;
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr(" on rank 1, "), HasSubstr(" on ranks 0, 2"),
                         HasSubstr("step 6"),
                         HasSubstr("checksum of the parameters"))));
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

// That is what makes it silent.
TEST(SilentDivergenceTest, WithoutTheChecksumItGoesUnnoticed) {
  const Ended job = RunToEnd(Diverging("checksum_every=0"));
  EXPECT_EQ(job.status, 0) << job.err;
  const auto digests = DigestsByRank(job.out);
  ASSERT_THAT(digests, SizeIs(3));
  EXPECT_NE(digests.at(0).at(20), digests.at(1).at(20));
}

TEST(SilentDivergenceTest, OfTwoRanksBothAreNamed) {
  const Ended job = RunToEnd(Launcher(
      {"--nproc", "2"},
      {"--steps", "20", "--diverge-at", "1:4", "--term", "checksum_every=1"}));
  EXPECT_EQ(job.status, 1);
  const auto errors = LinesWith(job.err, "toy_worker: ");
  EXPECT_THAT(errors, SizeIs(2)) << job.err;
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("step 5"), HasSubstr(" on rank 0"),
                                 HasSubstr(" on rank 1"),
                                 HasSubstr("checksum of the parameters"))));
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
