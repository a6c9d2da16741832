#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class KilledWorkerTest : public testing::TestWithParam<const char*> {};

// One of three is killed in mid-training: the others go on in the same
// processes, with every sum right and the same bits.
TEST_P(KilledWorkerTest, TheOthersGoOn) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher = cluster.Start(
      {"bow", 3, {"--min-workers", "2", "--backend", GetParam()}, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  cluster.Kill(*before[1]);
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  const auto after = cluster.Training();
  EXPECT_EQ(after[0], before[0]) << "the process is another one";
  EXPECT_EQ(after[1], before[2]);
  EXPECT_EQ(after[0]->rank(), 0) << "ranks are kept";
  EXPECT_FALSE(after[0]->generations.back().copied);
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(2);
  EXPECT_THAT(cluster.Transcript(),
              testing::HasSubstr("the job went on without worker bow/"));
}

INSTANTIATE_TEST_SUITE_P(BackEnds, KilledWorkerTest,
                         testing::Values("shm", "tcp"),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

// A worker that is started again gets everything from its peers, which go on
// meanwhile, or wait for it where the job cannot do with fewer.
class RestartedWorkerTest : public testing::TestWithParam<const char*> {};

TEST_P(RestartedWorkerTest, ItComesBack) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher =
      cluster.Start({"bow",
                     3,
                     {"--min-workers", GetParam(), "--max-restarts", "1"},
                     kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  cluster.Kill(*before[1]);
  ASSERT_TRUE(cluster.Await("three train again", [&] {
    const auto training = cluster.Training();
    return training.size() == 3 && cluster.At(before[1]->worker) != before[1];
  }));
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  // The same processes but for the one; the survivors may have moved up
  // meanwhile, into a rank that was free.
  for (const WorkerLife* life : before) {
    const WorkerLife* now = cluster.At(life->worker);
    EXPECT_EQ(now == life, life != before[1]) << life->worker;
    EXPECT_EQ(now->world(), 3);
  }
  const WorkerLife* back = cluster.At(before[1]->worker);
  EXPECT_NE(back->pid, before[1]->pid);
  EXPECT_TRUE(back->generations.front().copied);
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(3);
}

INSTANTIATE_TEST_SUITE_P(MinWorkers, RestartedWorkerTest,
                         testing::Values("2", "3"), [](const auto& least) {
                           return std::string(least.param);
                         });

TEST(TwoKilledAtOnceTest, TheOthersGoOnAndBothComeBack) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher = cluster.Start(
      {"bow", 4, {"--min-workers", "2", "--max-restarts", "1"}, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(4, 20));
  const auto before = cluster.Training();
  cluster.Kill(*before[0]);  // rank 0 has no duty that another could not do
  cluster.Kill(*before[2]);
  ASSERT_TRUE(cluster.Await("both are back", [&] {
    return cluster.At(before[0]->worker) != before[0] &&
           cluster.At(before[2]->worker) != before[2];
  }));
  ASSERT_TRUE(cluster.AwaitSteps(4, 20));
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(4);
}

// The coordinator is killed, and a worker while no coordinator runs. Its
// launcher repeats the report until the coordinator is back, with a higher term
// and the job as it was; the others go on without the worker then, in the same
// processes.
TEST(CoordinatorAndWorkerKilledAtOnceTest, TheOthersGoOn) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher =
      cluster.Start({"bow", 3, {"--min-workers", "2"}, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  cluster.KillCoordinator();
  cluster.Kill(*before[1]);
  cluster.Serve();
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  const auto after = cluster.Training();
  EXPECT_EQ(after[0], before[0]) << "the process is another one";
  EXPECT_EQ(after[1], before[2]);
  EXPECT_GT(after[0]->generation(), before[1]->generation());
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(2);
}

// Two of four have joined and wait; one of them is killed and started again.
// The round goes on, and completes when the others come.
TEST(KillWhileJoiningTest, TheRoundCompletesWithItsNextIncarnation) {
  TestCluster cluster;
  cluster.Serve();
  const std::vector<std::string> run = {"--nnodes", "2", "--max-restarts", "1"};
  const auto first = cluster.Start({"a", 2, run, kLongToy});
  ASSERT_TRUE(cluster.AwaitDescribed("two have joined", [](const auto& job) {
    return job.members_size() == 2;
  }));
  const std::vector<pid_t> pids = cluster.PidsOf(first);
  ASSERT_EQ(pids.size(), 2u);
  ASSERT_EQ(kill(pids[0], SIGKILL), 0);
  ASSERT_TRUE(cluster.Await("it is started again", [&] {
    return absl::StrContains(cluster.Transcript(),
                             "it is started again (1 of 1)");
  }));
  const auto second = cluster.Start({"b", 2, run, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(4, 20));
  cluster.EndTraining();
  cluster.Finish({{first, 0}, {second, 0}});
  cluster.ExpectExactAndEqual(4);
}

// One is killed, and while the others re-form without it, another one: as soon
// as the first survivor has seen the first loss.
TEST(KillWhileReformingTest, ThoseThatAreLeftGoOn) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher =
      cluster.Start({"bow", 4, {"--min-workers", "2"}, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(4, 20));
  const auto before = cluster.Training();
  cluster.Kill(*before[1]);
  ASSERT_TRUE(cluster.Await("a survivor has seen it", [&] {
    return before[2]->generations.back().ended < absl::InfiniteFuture() ||
           before[3]->generations.back().ended < absl::InfiniteFuture();
  }));
  cluster.Kill(*before[2]);
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  const auto after = cluster.Training();
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(after[1], before[3]);
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(2);
}

// A worker trains to the end and leaves; then its process fails, in what the
// program does after that. Its launcher starts it again, into a job that is
// done, or that ends in a moment: there is nothing to do, and all is well.
class FailsAfterTheEndTest : public testing::TestWithParam<const char*> {};

TEST_P(FailsAfterTheEndTest, HasNothingToDoWhenItIsStartedAgain) {
  const TemporaryFolder folder;
  // The first process of slot 0 fails, once.
  const std::string script = absl::StrCat(
      "tests/system/toy/elastic_toy --steps 50 || exit 9; "
      "[ $COXSWAIN_LOCAL_RANK != 0 ] || ! mkdir ",
      folder.path("failed"), " 2>/dev/null || exit 3");
  TestCluster cluster;
  cluster.Serve();
  TestCluster::Launch launch;
  launch.node = "bow";
  launch.nproc = 2;
  launch.run = {"--min-workers", GetParam(), "--max-restarts", "1"};
  launch.program = "/bin/sh";
  launch.toy = {"-c", script};
  const auto launcher = cluster.Start(launch);
  cluster.Finish({{launcher, 0}});
  EXPECT_THAT(cluster.Transcript(),
              HasSubstr("exited with code 3; it is started again (1 of 1)"));
  EXPECT_THAT(cluster.lives(), SizeIs(2)) << "a worker has trained once more\n"
                                          << cluster.Transcript();
}

INSTANTIATE_TEST_SUITE_P(MinWorkers, FailsAfterTheEndTest,
                         testing::Values("1", "2"), [](const auto& least) {
                           return std::string(least.param);
                         });

}  // namespace
}  // namespace coxswain
