#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/crew.h"

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

// A fourth worker waits while three train, and takes the place and the rank of
// one that is killed. The job never runs with fewer than three.
TEST(HotSpareTest, ItTakesOver) {
  Crew crew;
  crew.Serve();
  const std::vector<std::string> three = {"--nnodes", "2:3"};
  std::map<Crew::Launcher, int> statuses;
  std::vector<Crew::Launcher> launchers;
  for (const char* node : {"a", "b", "c"}) {
    launchers.push_back(crew.Start({node, 1, three, kLongToy}));
  }
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  const auto spare = crew.Start({"d", 1, three, kLongToy});
  ASSERT_TRUE(crew.AwaitDescribed("d waits as a spare", [](const auto& job) {
    return job.spares_size() == 1 &&
           job.spares(0).member().identity().node() == "d";
  }));
  const auto before = crew.Training();
  const std::string killed = before[1]->worker;
  crew.Kill(*before[1]);
  ASSERT_TRUE(crew.Await("the spare trains",
                         [&] { return crew.At("d/0") != nullptr; }));
  ASSERT_TRUE(crew.AwaitSteps(3, 20));
  EXPECT_EQ(crew.At("d/0")->rank(), 1);
  EXPECT_EQ(crew.At("d/0")->generation(), before[0]->generation());
  for (const auto& life : crew.lives()) EXPECT_EQ(life->world(), 3);
  crew.EndTraining();
  const char* const nodes[] = {"a", "b", "c"};
  for (size_t i = 0; i < launchers.size(); ++i) {
    const bool died = killed == absl::StrCat(nodes[i], "/0");
    statuses[launchers[i]] = died ? 128 + SIGKILL : 0;
  }
  statuses[spare] = 0;
  crew.Finish(statuses);
  crew.ExpectExactAndEqual(3);
}

TEST(HotSpareTest, OneThatIsNotNeededEndsWithSuccess) {
  Crew crew;
  crew.Serve();
  const std::vector<std::string> two = {"--nnodes", "1:2"};
  const auto first = crew.Start({"a", 1, two, kLongToy});
  const auto second = crew.Start({"b", 1, two, kLongToy});
  ASSERT_TRUE(crew.AwaitSteps(2, 5));
  const auto spare = crew.Start({"c", 1, two, kLongToy});
  ASSERT_TRUE(crew.AwaitDescribed("c waits as a spare", [](const auto& job) {
    return job.spares_size() == 1;
  }));
  crew.EndTraining();
  crew.Finish({{first, 0}, {second, 0}, {spare, 0}});
  crew.ExpectExactAndEqual(2);
}

}  // namespace
}  // namespace coxswain
