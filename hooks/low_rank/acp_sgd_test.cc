#include "hooks/low_rank/acp_sgd.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/low_rank/worlds_for_test.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

constexpr char kSpec[] = "acp_sgd(rank=2,start_step=2)";

std::map<std::string, int> Kinds(const HookState& state) {
  std::map<std::string, int> kinds;
  for (const StateTensor& tensor : state.tensors) ++kinds[tensor.kind];
  return kinds;
}

TEST(AcpSgdTest, ABucketTakesOneAllReduceWhateverIsInIt) {
  const auto parameters = ThreeBucketsOfParameters();
  HookWorld world = Started(kSpec, parameters, 3, ThreeBuckets());
  for (int64_t step = 2; step < 5; ++step) {
    const Traffic traffic = TrafficOfStep(world, Local(parameters, 3, step));
    EXPECT_EQ(traffic.collectives, 3);
    const int64_t p = 2 * (16 + 16 + 20 + 12);
    const int64_t q = 2 * (24 + 24 + 20 + 18);
    EXPECT_EQ(traffic.payload_bytes, ((step % 2 == 1 ? p : q) + 41) * 8);
  }
}

TEST(AcpSgdTest, OneCollectivePerBucketAndOneMoreForAReport) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 24}, DType::kFloat32),
      Parameter("b", {7}, DType::kFloat32)};
  HookWorld world = Started(kSpec, parameters, 2);
  int64_t before = world.payload_bytes();
  const auto sent = [&] {
    const int64_t bytes = world.payload_bytes() - before;
    before = world.payload_bytes();
    return bytes;
  };
  world.Step(Local(parameters, 2, 0));  // step 2, even: Q
  EXPECT_EQ(sent(), (2 * 24 + 7) * 4);
  world.Step(Local(parameters, 2, 1));  // P
  EXPECT_EQ(sent(), (2 * 16 + 7) * 4);
  auto local = Local(parameters, 2, 2);
  local[1][1][0] = std::numeric_limits<double>::infinity();
  const Gradients result = world.Exchange(local);
  for (const double value : result[0]) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(sent(), (2 * 24 + 7) * 4 + 2 * 4);
  ASSERT_EQ(world.hook(0).non_finite().size(), 1u);
  EXPECT_EQ(world.hook(0).non_finite()[0].parameter, "b");
  world.Rollback();
}

TEST(AcpSgdTest, StateHoldsBothFactorsAndTheMeanError) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 24}),
                                                 Parameter("b", {7})};
  HookWorld world = Started(kSpec, parameters, 2);
  EXPECT_TRUE(world.Save().tensors.empty());
  world.Step(Local(parameters, 2, 0));
  const std::map<std::string, int> expected = {
      {"error", 1}, {"p", 1}, {"q", 1}};
  EXPECT_EQ(Kinds(world.Save()), expected);
}

// A committed step that was poisoned leaves the factors, and the next one
// takes its turn with what there is.
TEST(AcpSgdTest, GoesOnAfterACommittedPoisonedStep) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 24})};
  HookWorld world = Started(kSpec, parameters, 2);
  for (int64_t step = 0; step < 3; ++step) {
    world.Step(Local(parameters, 2, step));
  }
  HookState before = world.Save();
  auto local = Local(parameters, 2, 3);
  local[0][0][0] = std::nan("");
  world.Step(local);
  ++before.step;
  EXPECT_EQ(SerializeHookState(world.Save()), SerializeHookState(before));
  for (int64_t step = 4; step < 8; ++step) {
    const Gradients result = world.Step(Local(parameters, 2, step));
    for (const double value : result[0]) EXPECT_TRUE(std::isfinite(value));
  }
}

// Of a gradient that stays, alternating steps find the best factors: those of
// its singular value decomposition, here of rank 2.
TEST(AcpSgdTest, ConvergesOnAGradientOfItsRank) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {12, 18})};
  HookWorld world = Started("acp_sgd(rank=2,start_step=2,error_feedback=false)",
                            parameters, 2);
  Gradients fixed = {std::vector<double>(12 * 18)};
  for (size_t i = 0; i < fixed[0].size(); ++i) {
    const double row = static_cast<double>(i / 18);
    const double column = static_cast<double>(i % 18);
    fixed[0][i] = 1 + row * column;
  }
  Gradients last;
  for (int step = 0; step < 6; ++step) last = world.Step({fixed, fixed});
  EXPECT_LE(RelativeDifference(last, fixed), 1e-10);
}

}  // namespace
}  // namespace coxswain
