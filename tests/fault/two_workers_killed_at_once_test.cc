#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

TEST(TwoKilledAtOnceTest, TheOthersGoOnAndBothComeBack) {
  Crew crew;
  crew.Serve();
  const auto launcher = crew.Start(
      {"bow", 4, {"--min-workers", "2", "--max-restarts", "1"}, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(4, 20));
  const auto before = crew.Training();
  crew.Kill(*before[0]);  // rank 0 has no duty that nobody else could do
  crew.Kill(*before[2]);
  ASSERT_TRUE(crew.Await("both are back", [&] {
    return crew.At(before[0]->worker) != before[0] &&
           crew.At(before[2]->worker) != before[2];
  }));
  ASSERT_TRUE(crew.AwaitSteps(4, 20));
  crew.EndTraining();
  crew.Finish({{launcher, 0}});
  crew.ExpectExactAndEqual(4);
}

}  // namespace
}  // namespace coxswain
