#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

// The coordinator is killed, and a worker while nobody can be told. Its
// launcher repeats the report until the coordinator is back, with a higher term
// and the job as it was; the others go on without the worker then, in the same
// processes.
TEST(CoordinatorAndWorkerKilledAtOnceTest, TheOthersGoOn) {
  Crew crew;
  crew.Serve();
  const auto launcher =
      crew.Start({"bow", 3, {"--min-workers", "2"}, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  const auto before = crew.Training();
  crew.KillCoordinator();
  crew.Kill(*before[1]);
  crew.Serve();
  ASSERT_TRUE(crew.AwaitSteps(2, 20));
  const auto after = crew.Training();
  EXPECT_EQ(after[0], before[0]) << "the process is another one";
  EXPECT_EQ(after[1], before[2]);
  EXPECT_GT(after[0]->generation(), before[1]->generation());
  crew.EndTraining();
  crew.Finish({{launcher, 0}});
  crew.ExpectExactAndEqual(2);
}

}  // namespace
}  // namespace coxswain
