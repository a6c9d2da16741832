#include <csignal>
#include <string>

#include "base/status_matchers.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

// The coordinator is killed, and none runs. The workers decide steps at rank
// 0's fallback coordinator, and find the next coordinator when it starts, in
// the same processes and the same generation; no sum is lost or counted twice.
void TrainThroughADeath(int workers, const std::vector<std::string>& run) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher = cluster.Start({"bow", workers, run, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(workers, 20));
  const auto before = cluster.Training();
  const int64_t generation = before[0]->generation();
  for (int death = 0; death < 2; ++death) {
    cluster.KillCoordinator();
    ASSERT_TRUE(cluster.AwaitSteps(workers, 60)) << "no coordinator is there";
    cluster.Serve();
    ASSERT_TRUE(cluster.AwaitDescribed(
        "all are attached again", [&](const v1::JobDescription& job) {
          int attached = 0;
          for (const v1::MemberDescription& member : job.members()) {
            attached += member.state() == "attached" ? 1 : 0;
          }
          return attached == workers;
        }));
    ASSERT_TRUE(cluster.AwaitSteps(workers, 60));
  }
  EXPECT_EQ(cluster.Training(), before) << "a process is another one";
  EXPECT_EQ(before[0]->generation(), generation);
  EXPECT_EQ(cluster.lives().size(), static_cast<size_t>(workers));
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(workers);
}

TEST(WorkersTrainWithoutACoordinatorTest, Audit) { TrainThroughADeath(3, {}); }

TEST(WorkersTrainWithoutACoordinatorTest, Strict) {
  TrainThroughADeath(3, {"--plan", "enforcement=strict"});
}

TEST(WorkersTrainWithoutACoordinatorTest, AWorkerAlone) {
  TrainThroughADeath(1, {});
}

}  // namespace
}  // namespace coxswain
