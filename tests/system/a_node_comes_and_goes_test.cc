#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

// A launcher gets SIGTERM: its worker finishes the step under way and leaves,
// and the job goes on without it, having lost nothing.
TEST(DrainTest, TheOthersGoOn) {
  TestCluster cluster;
  cluster.Serve();
  const std::vector<std::string> run = {"--nnodes", "2:3", "--max-restarts",
                                        "3"};
  const auto first = cluster.Start({"a", 1, run, kLongToy});
  const auto second = cluster.Start({"b", 1, run, kLongToy});
  const auto third = cluster.Start({"c", 1, run, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  cluster.Signal(second, SIGTERM);
  ASSERT_TRUE(cluster.Await("the launcher has ended", [&] {
    return cluster.status(second).has_value();
  }));
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  const WorkerLife& drained = *cluster.At("b/0");
  ASSERT_TRUE(drained.result.has_value()) << cluster.Transcript();
  EXPECT_FALSE(drained.result->finished);
  for (const char* worker : {"a/0", "c/0"}) {
    const WorkerLife& life = *cluster.At(worker);
    EXPECT_EQ(life.generations.size(), 2u);
    EXPECT_EQ(life.generations.back().from_step, drained.result->step)
        << "the step under way was finished by all";
    EXPECT_EQ(life.generations.front().ended, absl::InfiniteFuture())
        << "there was an error";
  }
  cluster.EndTraining();
  cluster.Finish({{first, 0}, {second, 0}, {third, 0}});
  cluster.ExpectExactAndEqual(2);
}

// A fourth worker waits while three train, and takes the place and the rank of
// one that is killed. The job never runs with fewer than three.
TEST(HotSpareTest, ItTakesOver) {
  TestCluster cluster;
  cluster.Serve();
  const std::vector<std::string> three = {"--nnodes", "2:3"};
  std::map<TestCluster::Launcher, int> statuses;
  std::vector<TestCluster::Launcher> launchers;
  for (const char* node : {"a", "b", "c"}) {
    launchers.push_back(cluster.Start({node, 1, three, kLongToy}));
  }
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto spare = cluster.Start({"d", 1, three, kLongToy});
  ASSERT_TRUE(cluster.AwaitDescribed("d waits as a spare", [](const auto& job) {
    return job.spares_size() == 1 &&
           job.spares(0).member().identity().node() == "d";
  }));
  const auto before = cluster.Training();
  const std::string killed = before[1]->worker;
  cluster.Kill(*before[1]);
  ASSERT_TRUE(cluster.Await("the spare trains",
                            [&] { return cluster.At("d/0") != nullptr; }));
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  EXPECT_EQ(cluster.At("d/0")->rank(), 1);
  EXPECT_EQ(cluster.At("d/0")->generation(), before[0]->generation());
  for (const auto& life : cluster.lives()) EXPECT_EQ(life->world(), 3);
  cluster.EndTraining();
  const char* const nodes[] = {"a", "b", "c"};
  for (size_t i = 0; i < launchers.size(); ++i) {
    const bool died = killed == absl::StrCat(nodes[i], "/0");
    statuses[launchers[i]] = died ? 128 + SIGKILL : 0;
  }
  statuses[spare] = 0;
  cluster.Finish(statuses);
  cluster.ExpectExactAndEqual(3);
}

TEST(HotSpareTest, OneThatIsNotNeededEndsWithSuccess) {
  TestCluster cluster;
  cluster.Serve();
  const std::vector<std::string> two = {"--nnodes", "1:2"};
  const auto first = cluster.Start({"a", 1, two, kLongToy});
  const auto second = cluster.Start({"b", 1, two, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(2, 5));
  const auto spare = cluster.Start({"c", 1, two, kLongToy});
  ASSERT_TRUE(cluster.AwaitDescribed("c waits as a spare", [](const auto& job) {
    return job.spares_size() == 1;
  }));
  cluster.EndTraining();
  cluster.Finish({{first, 0}, {second, 0}, {spare, 0}});
  cluster.ExpectExactAndEqual(2);
}

}  // namespace
}  // namespace coxswain
