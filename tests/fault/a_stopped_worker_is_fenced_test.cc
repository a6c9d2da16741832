#include <csignal>
#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

// A worker stands still past its lease; the others go on without it. When it
// goes on, nothing of what it still says counts: it finds out that it was
// given up, and joins again as a newcomer, or ends with an error.
TEST(StoppedWorkerTest, TheZombieIsFencedAndComesBackAsANewcomer) {
  Crew crew;
  crew.Serve();
  const auto launcher = crew.Start(
      {"bow", 3, {"--min-workers", "2", "--max-restarts", "1"}, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  const auto before = crew.Training();
  ASSERT_EQ(kill(before[1]->pid, SIGSTOP), 0);
  ASSERT_TRUE(crew.Await("the others go on", [&] {
    return before[0]->world() == 2 && before[2]->world() == 2;
  }));
  const int64_t without = before[0]->generation();
  ASSERT_EQ(before[2]->generation(), without);
  const int64_t step = before[0]->step;
  ASSERT_TRUE(crew.Await("they have got on",
                         [&] { return before[0]->step > step + 20; }));
  const int64_t zombie_step = before[1]->step;
  ASSERT_EQ(kill(before[1]->pid, SIGCONT), 0);
  ASSERT_TRUE(crew.Await("it is back", [&] {
    const WorkerLife* back = crew.At(before[1]->worker);
    return back->generation() > without && back->world() == 3;
  }));
  const WorkerLife* back = crew.At(before[1]->worker);
  EXPECT_TRUE(back->generations.back().copied) << "what it had is too old";
  EXPECT_GT(back->generations.back().from_step, zombie_step);
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  crew.EndTraining();
  crew.Finish({{launcher, 0}});
  crew.ExpectExactAndEqual(3);
}

}  // namespace
}  // namespace coxswain
