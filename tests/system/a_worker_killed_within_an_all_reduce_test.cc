#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

// A rank ends in the middle of a step, at each of its points; the others are
// in the all-reduce, or about to commit what it gave them. None of it is
// counted twice, and none is lost.
class KillWithinAllReduceTest : public testing::TestWithParam<const char*> {};

TEST_P(KillWithinAllReduceTest, TheStepIsTakenOnceOrNotAtAll) {
  TestCluster cluster;
  cluster.Serve();
  std::vector<std::string> toy = kLongToy;
  toy.insert(toy.end(), {"--die", absl::StrCat("1:25:", GetParam())});
  const auto launcher = cluster.Start({"bow", 3, {"--min-workers", "2"}, toy});
  ASSERT_TRUE(cluster.Await("two have taken over", [&] {
    const auto training = cluster.Training();
    return training.size() == 2 && training[0]->world() == 2;
  }));
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(2);
}

INSTANTIATE_TEST_SUITE_P(Points, KillWithinAllReduceTest,
                         testing::Values("before", "within", "decided",
                                         "after"),
                         [](const auto& point) {
                           return std::string(point.param);
                         });

// The others certainly wait in the exchange: the victim has been stopped before
// it is killed.
TEST(KillStoppedWorkerTest, ARankThatWaitsForItInTheExchangeGoesOn) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher =
      cluster.Start({"bow", 3, {"--min-workers", "2"}, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  WorkerLife& victim = *cluster.Training()[2];
  ASSERT_EQ(kill(victim.pid, SIGSTOP), 0);
  ASSERT_TRUE(cluster.AwaitDescribed("it is silent", [](const auto& job) {
    return job.members_size() == 3 && job.members(2).silent_ms() > 2500;
  }));
  cluster.Kill(victim);
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(2);
}

}  // namespace
}  // namespace coxswain
