#include <string>

#include "base/status_matchers.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class AgreedStopTest : public testing::TestWithParam<const char*> {};

TEST_P(AgreedStopTest, EndsAllAtTheSameStep) {
  const Ended job = RunToEnd(
      Launcher({"--nproc", "3"}, {"--steps", "1000000000", "--digest",
                                  "--stop-at", "1:7", "--term", GetParam()}));
  EXPECT_EQ(job.status, 0) << job.err;
  const auto digests = DigestsByRank(job.out);
  ASSERT_THAT(digests, SizeIs(3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(PrintedBy(rank, "stops", job.out),
                ElementsAre(AllOf(HasSubstr("after step 7: "),
                                  HasSubstr("rank 1 has had enough"))));
    EXPECT_THAT(PrintedBy(rank, "done", job.out), SizeIs(1));
    EXPECT_THAT(digests.at(rank), SizeIs(8));  // what it stops after counts
    EXPECT_EQ(digests.at(rank), digests.at(0));
  }
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Terms, AgreedStopTest,
                         testing::Values("enforcement=audit",
                                         "enforcement=strict",
                                         "commit_vote=true"),
                         [](const auto& info) {
                           const std::string term = info.param;
                           return term.substr(term.find('=') + 1) == "true"
                                      ? std::string("vote")
                                      : term.substr(term.find('=') + 1);
                         });

}  // namespace
}  // namespace coxswain
