#include <csignal>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "tests/fault/crew.h"

namespace coxswain {
namespace {

// A launcher gets SIGTERM: its worker finishes the step under way and leaves,
// and the job goes on without it, having lost nothing.
TEST(DrainTest, TheOthersGoOn) {
  Crew crew;
  crew.Serve();
  const std::vector<std::string> run = {"--nnodes", "2:3", "--max-restarts",
                                        "3"};
  const auto first = crew.Start({"a", 1, run, kLongToy});
  const auto second = crew.Start({"b", 1, run, kLongToy});
  const auto third = crew.Start({"c", 1, run, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  crew.Signal(second, SIGTERM);
  ASSERT_TRUE(crew.Await("the launcher has ended",
                         [&] { return crew.status(second).has_value(); }));
  ASSERT_TRUE(crew.AwaitSteps(2, 20));
  const WorkerLife& drained = *crew.At("b/0");
  ASSERT_TRUE(drained.result.has_value()) << crew.Transcript();
  EXPECT_FALSE(drained.result->finished);
  for (const char* worker : {"a/0", "c/0"}) {
    const WorkerLife& life = *crew.At(worker);
    EXPECT_EQ(life.generations.size(), 2u);
    EXPECT_EQ(life.generations.back().from_step, drained.result->step)
        << "the step under way was finished by all";
    EXPECT_EQ(life.generations.front().ended, absl::InfiniteFuture())
        << "there was an error";
  }
  crew.EndTraining();
  crew.Finish({{first, 0}, {second, 0}, {third, 0}});
  crew.ExpectExactAndEqual(2);
}

}  // namespace
}  // namespace coxswain
