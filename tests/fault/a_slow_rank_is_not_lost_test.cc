#include <csignal>
#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

// A worker stands still for less than its lease: all wait for it, and nobody is
// lost.
TEST(SlowRankTest, ItIsWaitedFor) {
  Crew crew;
  crew.Serve();
  const auto launcher =
      crew.Start({"bow", 3, {"--min-workers", "2"}, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  const auto before = crew.Training();
  ASSERT_EQ(kill(before[1]->pid, SIGSTOP), 0);
  ASSERT_TRUE(
      crew.AwaitDescribed("it was silent for a while", [](const auto& job) {
        return job.members_size() == 3 && job.members(1).silent_ms() > 4000;
      }));
  ASSERT_EQ(kill(before[1]->pid, SIGCONT), 0);
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  EXPECT_EQ(crew.Training(), before);
  for (const WorkerLife* life : before) {
    EXPECT_EQ(life->generations.size(), 1u);
  }
  crew.EndTraining();
  crew.Finish({{launcher, 0}});
  crew.ExpectExactAndEqual(3);
}

}  // namespace
}  // namespace coxswain
