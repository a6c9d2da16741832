#include <string>

#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

// A worker that is started again gets everything from its peers, which go on
// meanwhile, or wait for it where the job cannot do with fewer.
class RestartedWorkerTest : public testing::TestWithParam<const char*> {};

TEST_P(RestartedWorkerTest, ItComesBack) {
  Crew crew;
  crew.Serve();
  const auto launcher =
      crew.Start({"bow",
                  3,
                  {"--min-workers", GetParam(), "--max-restarts", "1"},
                  kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  const auto before = crew.Training();
  crew.Kill(*before[1]);
  ASSERT_TRUE(crew.Await("three train again", [&] {
    const auto training = crew.Training();
    return training.size() == 3 && crew.At(before[1]->worker) != before[1];
  }));
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  // The same processes but for the one; the survivors may have moved up
  // meanwhile, into a rank that was free.
  for (const WorkerLife* life : before) {
    const WorkerLife* now = crew.At(life->worker);
    EXPECT_EQ(now == life, life != before[1]) << life->worker;
    EXPECT_EQ(now->world(), 3);
  }
  const WorkerLife* back = crew.At(before[1]->worker);
  EXPECT_NE(back->pid, before[1]->pid);
  EXPECT_TRUE(back->generations.front().copied);
  crew.EndTraining();
  crew.Finish({{launcher, 0}});
  crew.ExpectExactAndEqual(3);
}

INSTANTIATE_TEST_SUITE_P(MinWorkers, RestartedWorkerTest,
                         testing::Values("2", "3"), [](const auto& least) {
                           return std::string(least.param);
                         });

}  // namespace
}  // namespace coxswain
