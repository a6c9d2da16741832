// A job with a mesh, as an operator sees it, and how it is refused.
#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"
#include "tests/system/test_cluster.h"

namespace coxswain::placed_on_a_mesh {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

Ended Question(const TestCluster& cluster, const std::string& command) {
  return RunToEnd({kCoxswain, command, "--job", "rows", "--coordinator",
                   cluster.address()});
}

// Returns what a command of the cluster's job prints.
std::string Ask(const TestCluster& cluster, const std::string& command) {
  const Ended ended = Question(cluster, command);
  EXPECT_EQ(ended.status, 0) << ended.err;
  return ended.out;
}

TEST(PlacedOnAMeshTest, StatusAndErrorsShowWhereARankIs) {
  TestCluster cluster;
  cluster.Serve();
  Latch latch;
  TestCluster::Launch launch;
  launch.node = "bow";
  launch.nproc = 4;
  launch.run = {"--exit-grace", "1s", "--mesh", "dp=*,shard=2"};
  launch.program = kToyWorker;
  launch.toy = {"--steps",    "10",  "--latch", latch.path(),
                "--stall-at", "3:5", "--term",  "progress_timeout=10m"};
  const auto launcher = cluster.Start(launch);
  // Until then the coordinator may not know the job.
  ASSERT_TRUE(cluster.AwaitDescribed("four have joined", [](const auto& job) {
    return job.members_size() == 4;
  }));
  std::string status;
  ASSERT_TRUE(cluster.AwaitSeen("status names the rank", [&] {
    // It fails while the coordinator does not know the job yet.
    status = Question(cluster, "status").out;
    return absl::StrContains(status, "the others wait for ");
  }));
  EXPECT_THAT(status,
              AllOf(HasSubstr(", mesh dp=2,shard=2, "),
                    ContainsRegex("wait for rank 3 \\(dp 1, shard 1; bow/3 on"),
                    ContainsRegex("\n  2 +dp 1, shard 0 +bow/2 "),
                    Not(HasSubstr("placement"))));
  EXPECT_THAT(Ask(cluster, "why"), HasSubstr("rank 2 (dp 1, shard 0; bow/2"));

  const std::map<int, pid_t> pids = PidsByRank(cluster.Transcript());
  ASSERT_THAT(pids, SizeIs(4));
  ASSERT_EQ(kill(pids.at(3), SIGKILL), 0);
  ASSERT_TRUE(cluster.Await("the launcher has ended", [&] {
    return cluster.status(launcher).has_value();
  }));
  latch.Open();
  const std::string loss = "rank 3 (dp 1, shard 1; bow/3";
  EXPECT_THAT(Ask(cluster, "status"), HasSubstr(loss));
  EXPECT_THAT(LinesWith(cluster.Transcript(), loss), Not(IsEmpty()))
      << "a worker's error names it so";
  // The members and where they were outlive a restart.
  cluster.KillCoordinator();
  cluster.Serve();
  EXPECT_THAT(Ask(cluster, "status"),
              ContainsRegex("\n  2 +dp 1, shard 0 +bow/2 "));
  cluster.Finish({});
}

TEST(PlacedOnAMeshTest, WorkersOfDifferentMeshesAreRefusedWithTheDifference) {
  ServedCoordinator coordinator;
  const auto start = [&](const std::string& node, const std::string& mesh) {
    return Start(Launcher(
        {"--nnodes", "2", "--nproc", "1", "--node", node, "--job", "rows",
         "--coordinator", coordinator.address(), "--mesh", mesh},
        {"--steps", "3"}));
  };
  const auto bow = start("bow", "dp=*");
  const auto stroke = start("stroke", "dp=1,shard=2");
  for (Process* const launcher : {bow.get(), stroke.get()}) {
    const Ended ended = EndOf(*launcher);
    EXPECT_EQ(ended.status, 1);
    EXPECT_THAT(ended.err,
                HasSubstr("mesh: dp=* on rank 0 (bow/0); dp=1,shard=2 on rank "
                          "1 (stroke/0)"));
  }
}

TEST(PlacedOnAMeshTest, PartsOfAModelWithoutAPipelineAreRefused) {
  for (const std::string axis : {"pp", "tp"}) {
    const Ended ended = RunToEnd(
        Launcher({"--nproc", "2", "--mesh", axis + "=2"}, {"--steps", "3"}));
    EXPECT_NE(ended.status, 0);
    EXPECT_THAT(ended.err, HasSubstr("set the plan's pipeline, as in "
                                     "pipeline=1f1b, or leave " +
                                     axis + " out"));
    EXPECT_THAT(LinesWith(ended.out, "step"), IsEmpty());
  }
}

TEST(PlacedOnAMeshTest, AMismatchOfTheScheduleNamesThePlace) {
  const Ended ended =
      RunToEnd(Launcher({"--nproc", "2", "--mesh", "shard=*"},
                        {"--steps", "8", "--skip-sync-at", "1:4"}));
  EXPECT_NE(ended.status, 0);
  EXPECT_THAT(ended.err, HasSubstr("(rank 1 is shard 1)"));
}

TEST(PlacedOnAMeshTest, StepsAreDecidedAsWithoutOne) {
  const auto digests = [](const std::vector<std::string>& run) {
    const Ended ended = RunToEnd(Launcher(run, {"--steps", "4", "--digest"}));
    EXPECT_EQ(ended.status, 0) << ended.err;
    return DigestsByRank(ended.out);
  };
  const auto plain = digests({"--nproc", "4"});
  EXPECT_THAT(plain, SizeIs(4));
  EXPECT_EQ(digests({"--nproc", "4", "--mesh", "dp=2,shard=*"}), plain);
}

}  // namespace
}  // namespace coxswain::placed_on_a_mesh
