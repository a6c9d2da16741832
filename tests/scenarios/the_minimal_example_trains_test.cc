// What the README shows, run as the README says.

#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/scenarios/scenario.h"

namespace coxswain {
namespace {

TEST(MinimalExampleTest, LearnsOnTwoWorkersWithAPrivateCoordinator) {
  const auto launcher = Start({kCoxswain, "run", "--nproc", "2", "--no-prefix",
                               "--", "examples/minimal/minimal"});
  const auto exit = launcher->Wait(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  ASSERT_EQ(exit->Status(), 0) << launcher->err();
  std::istringstream out(launcher->out());
  std::vector<float> losses;
  int step = 0;
  for (float loss = 0; out >> step >> loss;) losses.push_back(loss);
  ASSERT_EQ(losses.size(), 5u) << launcher->out();
  EXPECT_EQ(step, 100);
  EXPECT_LT(losses.back(), 0.9f * losses.front());
}

}  // namespace
}  // namespace coxswain
