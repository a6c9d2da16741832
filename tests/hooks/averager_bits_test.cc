// What averagers compute depends neither on the instruction set nor on the
// number of threads; where they average over all ranks, all hold the same bits.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/comm/in_process/in_process_world.h"
#include "gtest/gtest.h"
#include "hooks/kernels/parallel.h"
#include "tests/conformance/averager_team.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

constexpr int64_t kStart = 1;
constexpr int64_t kSteps = 8;

// Each rank's values after each step, [step][rank].
using Course = std::vector<std::vector<Values>>;

Course CourseOf(const std::string& spec,
                const std::vector<ParameterSpec>& parameters, int size,
                const std::string& target, int threads) {
  const std::string before = KernelTarget();
  const int threads_before = KernelThreads();
  EXPECT_TRUE(UseKernelTarget(target));
  SetKernelThreads(threads);
  const auto world = InProcessWorld::Create(size);
  AveragerTeam::Group group;
  for (int rank = 0; rank < size; ++rank) {
    group.push_back(world->MakeRank(rank));
  }
  AveragerTeam team(spec, parameters, std::move(group),
                    NormalGradients(parameters, 61, 0, 0));
  Course course = team.RunTo(kSteps, kStart);
  if (team.averager(0).diverged()) course.push_back(team.AverageNow());
  EXPECT_TRUE(UseKernelTarget(before));
  SetKernelThreads(threads_before);
  return course;
}

class AveragerBitsTest : public testing::TestWithParam<const char*> {};

// The ranks of one run share a target, as it is the process's. If runs on
// different targets agree in every rank's bits, ranks on different targets
// would.
TEST_P(AveragerBitsTest, AreTheSameOnEveryTargetAndForEveryNumberOfThreads) {
  const auto targets = KernelTargets();
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    std::vector<ParameterSpec> parameters = OddParameters(dtype);
    for (int size = 1; size <= 8; ++size) {
      if (dtype == DType::kFloat64 && size % 3 != 0) continue;
      const Course expected =
          CourseOf(GetParam(), parameters, size, targets[0], 1);
      for (const Values& values : expected.back()) {
        EXPECT_EQ(values, expected.back()[0]) << size << " ranks";
      }
      for (size_t i = 1; i < targets.size(); ++i) {
        EXPECT_EQ(CourseOf(GetParam(), parameters, size, targets[i], 1),
                  expected)
            << targets[i] << ", " << size << " ranks";
      }
    }
  }
}

// Large enough for several threads (hooks/kernels/parallel.h).
TEST_P(AveragerBitsTest, AreTheSameForEveryNumberOfThreads) {
  ParameterSpec large;
  large.name = "large";
  large.shape = {401, 499};
  const Course expected =
      CourseOf(GetParam(), {large}, 2, KernelTargets().front(), 1);
  for (const int threads : {2, 3, 8}) {
    EXPECT_TRUE(CourseOf(GetParam(), {large}, 2, KernelTargets().back(),
                         threads) == expected)
        << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Averagers, AveragerBitsTest,
    testing::Values("post_local_sgd(start_step=1,period=3)",
                    "hierarchical_sgd(levels=2x2+4xall,start_step=1)",
                    "diloco(inner_steps=3,start_step=1)"));

}  // namespace
}  // namespace coxswain
