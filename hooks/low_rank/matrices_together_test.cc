// The matrices of a bucket share the threads, whatever their shapes.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hooks/kernels/parallel.h"
#include "hooks/low_rank/worlds_for_test.h"
#include "tests/conformance/hook_world.h"

namespace coxswain::matrices_together_test {
namespace {

constexpr int kRanks = 2;

// Matrices of which none is work for two threads, but all are, among tensors
// that travel raw.
std::vector<ParameterSpec> ManySmallMatrices(DType dtype) {
  std::vector<ParameterSpec> parameters;
  for (int i = 0; i < 5; ++i) {
    const std::string name = std::to_string(i);
    parameters.push_back(Parameter("same" + name, {96, 98}, dtype));
    parameters.push_back(Parameter("bias" + name, {96}, dtype));
    parameters.push_back(Parameter("wide" + name, {20 + i, 9, 7, 7}, dtype));
    parameters.push_back(Parameter("tall" + name, {301, 24 + 3 * i}, dtype));
  }
  return parameters;
}

HookWorld OneBucket(const std::string& spec,
                    const std::vector<ParameterSpec>& parameters) {
  HookWorld::Buckets all(1);
  for (size_t i = 0; i < parameters.size(); ++i) {
    all[0].push_back(static_cast<int>(i));
  }
  return Started(spec, parameters, kRanks, all);
}

struct Case {
  const char* name;
  const char* spec;
  int stages;  // that pass over the gradients
};

class MatricesTogetherTest : public testing::TestWithParam<Case> {
 protected:
  ~MatricesTogetherTest() override { SetKernelThreads(threads_); }

 private:
  const int threads_ = KernelThreads();
};

TEST_P(MatricesTogetherTest, AStageWakesTheThreadsOnce) {
  const auto parameters = ManySmallMatrices(DType::kFloat32);
  SetKernelThreads(2);
  HookWorld world = OneBucket(GetParam().spec, parameters);
  for (int64_t step = 2; step < 5; ++step) {
    const auto local = Local(parameters, kRanks, step);
    const int64_t before = ParallelRegions();
    world.Step(local);
    EXPECT_EQ(ParallelRegions() - before, kRanks * GetParam().stages) << step;
  }
}

TEST_P(MatricesTogetherTest, BitsAreThoseOfOneThread) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const auto parameters = ManySmallMatrices(dtype);
    const auto local = Local(parameters, kRanks, 2);
    const auto results = [&](int threads) {
      SetKernelThreads(threads);
      HookWorld world = OneBucket(GetParam().spec, parameters);
      const Gradients first = world.Step(local);
      return std::vector<Gradients>{first, world.Step(local)};
    };
    const auto expected = results(1);
    for (const int threads : {2, 3, 8}) {
      EXPECT_TRUE(results(threads) == expected)
          << NameOf(dtype) << ", " << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, MatricesTogetherTest,
    testing::Values(
        Case{"powersgd", "powersgd(rank=2,start_step=2)", 3},
        Case{"pytorch", "powersgd(rank=2,start_step=2,mode=pytorch)", 3},
        Case{"careless", "powersgd(rank=2,start_step=2,error_feedback=false)",
             3},
        Case{"acp_sgd", "acp_sgd(rank=2,start_step=2)", 2},
        Case{"batched", "batched_powersgd(rank=2,start_step=2)", 3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace coxswain::matrices_together_test
