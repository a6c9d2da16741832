#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

// One is killed, and while the others re-form without it, another one: as soon
// as the first survivor has seen the first loss.
TEST(KillWhileReformingTest, ThoseThatAreLeftGoOn) {
  Crew crew;
  crew.Serve();
  const auto launcher =
      crew.Start({"bow", 4, {"--min-workers", "2"}, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(4, 20));
  const auto before = crew.Training();
  crew.Kill(*before[1]);
  ASSERT_TRUE(crew.Await("a survivor has seen it", [&] {
    return before[2]->generations.back().ended < absl::InfiniteFuture() ||
           before[3]->generations.back().ended < absl::InfiniteFuture();
  }));
  crew.Kill(*before[2]);
  ASSERT_TRUE(crew.AwaitSteps(2, 20));
  const auto after = crew.Training();
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(after[1], before[3]);
  crew.EndTraining();
  crew.Finish({{launcher, 0}});
  crew.ExpectExactAndEqual(2);
}

}  // namespace
}  // namespace coxswain
