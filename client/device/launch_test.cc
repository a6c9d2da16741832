#include "client/device/launch.h"

#include <vector>

#include "client/device/launch_for_test.h"
#include "gtest/gtest.h"

namespace coxswain::launch_test {
namespace {

class AtOnce : public HostStream {
 public:
  void Enqueue(std::function<void()> work) override { work(); }
};

TEST(LaunchTest, TheHostRunsAProgramInAnyOrder) {
  std::vector<float> values(3 * SumOfBlock::kThreads);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<float> sums(3);
  for (uint64_t order = 0; order < 4; ++order) {
    sums = {0, 0, 0};
    RunOnHost(SumOfBlock{values.data(), sums.data()}, 3, order);
    EXPECT_EQ(sums, (std::vector<float>{2016, 6112, 10208})) << order;
  }
}

TEST(LaunchTest, CountsLaunches) {
  AtOnce stream;
  LaunchTarget target;
  target.host = &stream;
  std::vector<float> values(SumOfBlock::kThreads, 1);
  float sum = 0;
  Launch(&target, 0, SumOfBlock{values.data(), &sum});
  EXPECT_EQ(target.launches, 0);
  Launch(&target, 1, SumOfBlock{values.data(), &sum});
  EXPECT_EQ(target.launches, 1);
  EXPECT_EQ(sum, 64);
  EXPECT_EQ(target.error, 0);
}

TEST(LaunchTest, NothingIsLaunchedAfterAnError) {
  AtOnce stream;
  LaunchTarget target;
  target.host = &stream;
  target.error = 700;
  float sum = 0;
  Launch(&target, 1, SumOfBlock{nullptr, &sum});
  EXPECT_EQ(target.launches, 0);
  EXPECT_EQ(target.error, 700);
}

}  // namespace
}  // namespace coxswain::launch_test
