// Runs the examples of a few lines, with the commands of README and
// docs/hooks.md.

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

void ExpectLearns(const std::vector<std::string>& program,
                  const std::vector<std::string>& flags = {}) {
  std::vector<std::string> command = {kCoxswain, "run", "--nproc", "2",
                                      "--no-prefix"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.push_back("--");
  command.insert(command.end(), program.begin(), program.end());
  const auto launcher = Start(command);
  const auto exit = launcher->Wait(kTimeout);
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

TEST(MinimalExampleTest, LearnsOnTwoWorkersWithAPrivateCoordinator) {
  ExpectLearns({"examples/minimal/minimal"});
}

TEST(PipelineExampleTest, LearnsOnTwoStages) {
  ExpectLearns({"examples/pipeline/pipeline"}, {"--mesh", "pp=2"});
}

TEST(CustomFrameworkExampleTest, LearnsWithoutLibtorch) {
  ExpectLearns({"examples/custom_framework/custom_framework"});
}

TEST(CustomHookExampleTest, LearnsWithItsOwnHookWrappedAndPlanned) {
  ExpectLearns({"examples/custom_hook/custom_hook"});
}

TEST(CustomHookExampleTest, LearnsWithErrorFeedback) {
  ExpectLearns(
      {"examples/custom_hook/custom_hook", "--hook", "bf16(cyclic(parts=8))"});
}

TEST(CustomHookExampleTest, ReadsTheHookFromYaml) {
  const std::string path = testing::TempDir() + "/hook.yaml";
  std::ofstream(path) << "name: predivide\noptions: {factor: 2}\nwrap: fp16\n";
  ExpectLearns({"examples/custom_hook/custom_hook", "--hook", "@" + path});
}

}  // namespace
}  // namespace coxswain
