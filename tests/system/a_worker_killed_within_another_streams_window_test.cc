#include "base/status_matchers.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

// A second stream has begun a window in the first step, and ends it never. The
// survivors go on from the step that the parameters are of, and use each sample
// once.
TEST(SecondStreamTest, AKilledWorkerRepeatsNoSamplesOfTheOthers) {
  TestCluster cluster;
  cluster.Serve();
  TestCluster::Launch launch;
  launch.node = "bow";
  launch.nproc = 3;
  launch.run = {"--min-workers", "2"};
  launch.program = "tests/system/toy/elastic_tally";
  const auto launcher = cluster.Start(launch);
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  cluster.Kill(*before[1]);
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  const auto after = cluster.Training();
  EXPECT_EQ(after[0], before[0]) << "the process is another one";
  EXPECT_EQ(after[1], before[2]);
  // What it had printed before its step was decided may have been undone.
  EXPECT_GE(after[0]->generations.back().from_step, 20);
  EXPECT_FALSE(after[0]->generations.back().copied);
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(2);
}

}  // namespace
}  // namespace coxswain
