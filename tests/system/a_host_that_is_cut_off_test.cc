#include <string>

#include "base/status_matchers.h"
#include "tests/support/network_host.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

// Two hosts; the cable of one is disconnected. No connection breaks and no
// message is sent: the lease ends, and the workers that still reach the
// coordinator go on.
class CutOffTest : public testing::Test {
 protected:
  void SetUp() override {
    for (NetworkHost* host : {&bow_, &stroke_}) {
      const absl::Status made = host->Make();
      if (!made.ok()) {
        GTEST_SKIP() << "cannot make a network namespace (that needs "
                        "CAP_SYS_ADMIN, CAP_NET_ADMIN and iproute2): "
                     << made;
      }
    }
    ASSERT_OK(NetworkHost::Connect(&bow_, "10.78.0.1", &stroke_, "10.78.0.2"));
  }

  NetworkHost bow_{"bow"};
  NetworkHost stroke_{"stroke"};
};

TEST_F(CutOffTest, TheOthersGoOnAndItComesBack) {
  TestCluster cluster;
  cluster.Serve("10.78.0.1:0", bow_.prefix());
  const auto start = [&](const std::string& node, const NetworkHost& host) {
    TestCluster::Launch launch = {node, 1, {"--nnodes", "2:3"}, kLongToy};
    launch.before = host.prefix();
    return cluster.Start(launch);
  };
  const auto first = start("bow-a", bow_);
  const auto second = start("bow-b", bow_);
  const auto third = start("stroke", stroke_);
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  WorkerLife* const cut_off = cluster.At("stroke/0");

  ASSERT_OK(stroke_.SetCable(false));
  ASSERT_TRUE(cluster.Await("the others go on", [&] {
    return cluster.At("bow-a/0")->world() == 2 &&
           cluster.At("bow-b/0")->world() == 2;
  }));
  const int64_t step = cluster.At("bow-a/0")->step;
  ASSERT_TRUE(cluster.Await(
      "they get on", [&] { return cluster.At("bow-a/0")->step > step + 20; }));
  EXPECT_EQ(cut_off->world(), 3) << "it must not go on by itself";

  ASSERT_OK(stroke_.SetCable(true));
  ASSERT_TRUE(cluster.Await("it is back", [&] {
    return cut_off->generations.size() > 1 && cut_off->world() == 3;
  }));
  EXPECT_TRUE(cut_off->generations.back().copied);
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  cluster.EndTraining(bow_.prefix());
  cluster.Finish({{first, 0}, {second, 0}, {third, 0}});
  cluster.ExpectExactAndEqual(3);
}

}  // namespace
}  // namespace coxswain
