#include <string>

#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

class KilledWorkerTest : public testing::TestWithParam<const char*> {};

// One of three is killed in mid-training: the others go on in the same
// processes, with every sum right and the same bits.
TEST_P(KilledWorkerTest, TheOthersGoOn) {
  Crew crew;
  crew.Serve();
  const auto launcher = crew.Start(
      {"bow", 3, {"--min-workers", "2", "--backend", GetParam()}, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  const auto before = crew.Training();
  crew.Kill(*before[1]);
  ASSERT_TRUE(crew.AwaitSteps(2, 20));
  const auto after = crew.Training();
  EXPECT_EQ(after[0], before[0]) << "the process is another one";
  EXPECT_EQ(after[1], before[2]);
  EXPECT_EQ(after[0]->rank(), 0) << "ranks are kept";
  EXPECT_FALSE(after[0]->generations.back().copied);
  crew.EndTraining();
  crew.Finish({{launcher, 0}});
  crew.ExpectExactAndEqual(2);
  EXPECT_THAT(crew.Transcript(),
              testing::HasSubstr("the job went on without worker bow/"));
}

INSTANTIATE_TEST_SUITE_P(BackEnds, KilledWorkerTest,
                         testing::Values("shm", "gloo"),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

}  // namespace
}  // namespace coxswain
