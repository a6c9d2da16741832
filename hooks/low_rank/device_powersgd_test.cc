#include "hooks/low_rank/device_powersgd.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/device/emulated/emulated_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/low_rank/worlds_for_test.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_world.h"

namespace coxswain::device_powersgd_test {
namespace {

using testing::HasSubstr;

constexpr double kSingle = 1e-5;
constexpr double kDouble = 1e-12;

std::vector<ParameterSpec> OnGpu(std::vector<ParameterSpec> parameters) {
  for (ParameterSpec& parameter : parameters) {
    parameter.device = {Device::Kind::kCuda, 0};
  }
  return parameters;
}

// Vectors and a scalar among tall, wide and square matrices.
std::vector<ParameterSpec> Shapes(DType dtype) {
  return {Parameter("bias", {37}, dtype),
          Parameter("tall", {301, 9}, dtype),
          Parameter("wide", {7, 533}, dtype),
          Parameter("scalar", {}, dtype),
          Parameter("conv", {24, 5, 3, 3}, dtype),
          Parameter("none", {0, 4}, dtype),
          Parameter("square", {64, 64}, dtype),
          Parameter("norm", {1}, dtype),
          Parameter("same", {64, 64}, dtype)};
}
HookWorld::Buckets TwoBuckets() { return {{8, 7, 6, 5, 4}, {3, 2, 1, 0}}; }

HookWorld World(const std::string& spec,
                const std::vector<ParameterSpec>& parameters, int size) {
  return {spec, parameters, size,
          parameters.size() == 9 ? TwoBuckets() : HookWorld::Buckets()};
}

std::string Spec(const std::string& options) {
  return "powersgd(start_step=2,min_compression_rate=1" + options + ")";
}

// A hook on emulated GPUs, and the same on the CPU, after their plain steps.
struct Pair {
  Pair(const std::string& spec, std::vector<ParameterSpec> of, int ranks)
      : parameters(std::move(of)),
        size(ranks),
        cpu(World(spec, parameters, size)),
        gpu(World(spec, OnGpu(parameters), size)) {
    Compare(2, 1e-2);
  }

  // Steps of both, no further apart than that.
  void Compare(int steps, double tolerance) {
    for (int i = 0; i < steps; ++i, ++step) {
      const auto local = Local(parameters, size, step);
      EXPECT_LE(RelativeDifference(gpu.Step(local), cpu.Step(local)), tolerance)
          << "step " << step;
    }
  }

  const std::vector<ParameterSpec> parameters;
  const int size;
  HookWorld cpu;
  HookWorld gpu;
  int64_t step = 0;
};

std::string ListOf(const HookState& state) {
  std::string list;
  for (const StateTensor& tensor : state.tensors) {
    list += tensor.kind + " " + tensor.parameter + "; ";
  }
  return list;
}

struct Case {
  std::string name;
  std::string spec;
  DType dtype;
  double tolerance;
  int size;
};
void PrintTo(const Case& value, std::ostream* out) { *out << value.spec; }

class DevicePowerSgdTest : public testing::TestWithParam<Case> {};

// Twelve steps; HookWorld checks that all ranks have the same bits.
TEST_P(DevicePowerSgdTest, DoesAsTheCpu) {
  const Case& test = GetParam();
  Pair pair(test.spec, Shapes(test.dtype), test.size);
  pair.Compare(6, test.tolerance);
  // The power iteration on noise, whose singular values are close together,
  // amplifies what float rounded differently from step to step.
  const double later =
      test.dtype == DType::kFloat32 ? 100 * test.tolerance : test.tolerance;
  pair.Compare(6, later);
  const HookState gpu = pair.gpu.Save();
  const HookState cpu = pair.cpu.Save();
  EXPECT_EQ(ListOf(gpu), ListOf(cpu));
  EXPECT_EQ(gpu.step, cpu.step);
  EXPECT_EQ(gpu.options, cpu.options);
  EXPECT_LE(RelativeDifference(MeanError(gpu, pair.parameters, test.size),
                               MeanError(cpu, pair.parameters, test.size)),
            10 * later);
  EXPECT_NEAR(pair.gpu.hook(0).ErrorNorm(), pair.cpu.hook(0).ErrorNorm(),
              10 * later * (pair.cpu.hook(0).ErrorNorm() + 1e-9));
}

const Case kCases[] = {
    {"Rank1", Spec(""), DType::kFloat32, kSingle, 2},
    {"Rank2", Spec(",rank=2"), DType::kFloat32, kSingle, 3},
    {"Rank4", Spec(",rank=4"), DType::kFloat32, kSingle, 2},
    {"Rank1Double", Spec(""), DType::kFloat64, kDouble, 3},
    {"Rank2Double", Spec(",rank=2"), DType::kFloat64, kDouble, 2},
    {"Rank4Double", Spec(",rank=4"), DType::kFloat64, kDouble, 2},
    {"OneRank", Spec(",rank=2"), DType::kFloat64, kDouble, 1},
    {"NoFeedback", Spec(",rank=2,error_feedback=false"), DType::kFloat32,
     kSingle, 2},
    {"ColdStart", Spec(",rank=2,warm_start=false"), DType::kFloat64, kDouble,
     2},
    {"Nothing", Spec(",rank=2,warm_start=false,error_feedback=false"),
     DType::kFloat64, kDouble, 2},
    {"PyTorch", Spec(",rank=2,mode=pytorch,orthogonalization_epsilon=1e-8"),
     DType::kFloat64, 1e-10, 3},
    {"PyTorchRank4", Spec(",rank=4,mode=pytorch"), DType::kFloat64, 1e-10, 2},
    {"PyTorchColdStart", Spec(",mode=pytorch,warm_start=false"),
     DType::kFloat64, 1e-10, 2},
    {"GramSchmidt", Spec(",rank=3,orthogonalize=gram_schmidt"), DType::kFloat64,
     kDouble, 2},
    {"Cholesky", Spec(",rank=3,orthogonalize=cholesky_qr2"), DType::kFloat64,
     kDouble, 2},
    {"StartsLater", "powersgd(rank=2,start_step=7)", DType::kFloat64, kDouble,
     2},
    // Roundings to 16 bits differ where values do in their last bit, and the
    // power iteration on noise amplifies them.
    {"Float16", Spec(",rank=2"), DType::kFloat16, 0.05, 2},
    {"BFloat16", Spec(",rank=2"), DType::kBFloat16, 0.3, 2},
    {"Fp16", "fp16(" + Spec(",rank=2") + ")", DType::kFloat32, 0.05, 2},
    {"Bf16", "bf16(" + Spec("") + ")", DType::kFloat32, 0.3, 2},
};

INSTANTIATE_TEST_SUITE_P(Options, DevicePowerSgdTest, testing::ValuesIn(kCases),
                         [](const testing::TestParamInfo<Case>& info) {
                           return info.param.name;
                         });

TEST(DevicePowerSgdStepTest, ARollbackLeavesNoTrace) {
  for (const char* more :
       {",rank=2", ",rank=2,mode=pytorch", ",warm_start=false"}) {
    Pair pair(Spec(more), Shapes(DType::kFloat32), 2);
    HookWorld calm = World(Spec(more), OnGpu(pair.parameters), 2);
    for (int64_t step = 0; step < 2; ++step) {
      calm.Step(Local(pair.parameters, 2, step));
    }
    for (int64_t step = 2; step < 6; ++step) {
      const std::string before = SerializeHookState(pair.gpu.Save());
      pair.gpu.Exchange(Local(pair.parameters, 2, step + 100));
      pair.gpu.Rollback();
      EXPECT_EQ(SerializeHookState(pair.gpu.Save()), before);
      pair.gpu.GiveUp(Local(pair.parameters, 2, step + 200), 1);
      pair.gpu.Rollback();
      const auto local = Local(pair.parameters, 2, step);
      EXPECT_EQ(pair.gpu.Step(local), calm.Step(local)) << more;
    }
  }
}

TEST(DevicePowerSgdStepTest, WhatIsNotFiniteIsReportedAndTheNextStepIsClean) {
  for (const char* more :
       {",rank=2", ",error_feedback=false", ",rank=2,mode=pytorch"}) {
    Pair pair(Spec(more), Shapes(DType::kFloat64), 3);
    pair.Compare(2, 1e-10);
    auto local = Local(pair.parameters, 3, 50);
    local[1][6][17] = std::nan("");
    local[2][0][36] = std::numeric_limits<double>::infinity();
    for (HookWorld* world : {&pair.cpu, &pair.gpu}) {
      HookState before = world->Save();
      const Gradients result = world->Step(local);
      for (const int parameter : {0, 1, 2, 3, 4, 6, 7, 8}) {
        for (const double value : result[static_cast<size_t>(parameter)]) {
          EXPECT_TRUE(std::isnan(value));
        }
      }
      const auto found = world->NonFinite();
      ASSERT_EQ(found.size(), 2u);
      EXPECT_EQ(found[0].rank, 1);
      EXPECT_EQ(found[0].parameter, "square");
      EXPECT_EQ(found[1].rank, 2);
      EXPECT_EQ(found[1].parameter, "bias");
      ++before.step;  // it was a step all the same
      EXPECT_EQ(SerializeHookState(world->Save()), SerializeHookState(before));
    }
    ++pair.step;
    pair.Compare(3, 1e-10);
    EXPECT_TRUE(pair.gpu.NonFinite().empty());
  }
}

// Every gradient is finite, and a sum in float16 is not: three times on end,
// and the errors are dropped.
TEST(DevicePowerSgdStepTest, OverflowsDropTheErrorsAsOnTheCpu) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}, DType::kFloat32)};
  Pair pair("fp16(powersgd(start_step=2))", parameters, 2);
  pair.Compare(3, 0.05);
  auto local = Local(parameters, 2, 5);
  AddTo(local[0], local[0], 1e6);
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(pair.gpu.hook(0).ErrorNorm(), 0);
    for (HookWorld* world : {&pair.cpu, &pair.gpu}) {
      EXPECT_TRUE(std::isnan(world->Step(local)[0][0]));
      EXPECT_TRUE(world->NonFinite().empty());
    }
  }
  EXPECT_EQ(pair.gpu.hook(0).ErrorNorm(), 0);
  EXPECT_EQ(ListOf(pair.gpu.Save()), ListOf(pair.cpu.Save()));
  pair.Compare(3, 0.05);
}

TEST(DevicePowerSgdStepTest, ARollbackAfterOverflowsLeavesTheState) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}, DType::kFloat32)};
  Pair pair("fp16(powersgd(start_step=2))", parameters, 2);
  pair.Compare(3, 0.05);
  auto local = Local(parameters, 2, 5);
  AddTo(local[0], local[0], 1e6);
  const std::string before = SerializeHookState(pair.gpu.Save());
  for (int i = 0; i < 3; ++i) {
    for (HookWorld* world : {&pair.cpu, &pair.gpu}) {
      EXPECT_TRUE(std::isnan(world->Exchange(local)[0][0]));
      world->Rollback();
    }
    EXPECT_EQ(SerializeHookState(pair.gpu.Save()), before);
    EXPECT_GT(pair.gpu.hook(0).ErrorNorm(), 0);
  }
  // Both begin the next one without errors.
  pair.Compare(3, 0.05);
}

// A step of zeros, or of a lower rank than the factors, leaves zero columns
// in Q, which are drawn anew: the same as the CPU draws.
TEST(DevicePowerSgdStepTest, ZeroColumnsAreDrawn) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {12, 12}),
                                                 Parameter("v", {12, 12})};
  for (const double low_rank : {0.0, 1.0}) {
    Pair pair(Spec(",rank=2"), parameters, 2);
    const Gradients ones(2, std::vector<double>(144, low_rank));
    for (int i = 0; i < 3; ++i) {
      EXPECT_LE(RelativeDifference(pair.gpu.Step({ones, ones}),
                                   pair.cpu.Step({ones, ones})),
                kDouble);
    }
    pair.Compare(3, 1e-10);
  }
}

TEST(DevicePowerSgdStateTest, GoesToTheCpuAndBackOnAnyNumberOfRanks) {
  for (const char* more : {",rank=2", ",rank=2,mode=pytorch"}) {
    const std::string spec = Spec(more);
    Pair pair(spec, Shapes(DType::kFloat64), 3);
    pair.Compare(3, 1e-10);
    const HookState from_gpu = pair.gpu.Save();
    const HookState from_cpu = pair.cpu.Save();
    for (const int size : {1, 2, 3, 4}) {
      HookWorld straight = World(spec, pair.parameters, size);
      HookWorld to_cpu = World(spec, pair.parameters, size);
      HookWorld to_gpu = World(spec, OnGpu(pair.parameters), size);
      ASSERT_OK(straight.Load(from_cpu));
      ASSERT_OK(to_cpu.Load(from_gpu));
      ASSERT_OK(to_gpu.Load(from_cpu));
      EXPECT_EQ(SerializeHookState(to_gpu.Save()),
                SerializeHookState(straight.Save()));
      for (int64_t step = 5; step < 8; ++step) {
        const auto local = Local(pair.parameters, size, step);
        const Gradients expected = straight.Step(local);
        EXPECT_LE(RelativeDifference(to_cpu.Step(local), expected), 1e-9);
        EXPECT_LE(RelativeDifference(to_gpu.Step(local), expected), 1e-9);
      }
    }
  }
}

TEST(DevicePowerSgdStateTest, AStateReplacesWhatTheDeviceHas) {
  Pair pair(Spec(",rank=2"), Shapes(DType::kFloat32), 2);
  pair.Compare(2, kSingle);
  const HookState state = pair.gpu.Save();
  const auto local = Local(pair.parameters, 2, 20);
  const Gradients first = pair.gpu.Step(local);
  pair.gpu.Step(Local(pair.parameters, 2, 21));
  EXPECT_OK(pair.gpu.Load(state));
  EXPECT_LE(RelativeDifference(pair.gpu.Step(local), first), kSingle);
  // One that does not fit replaces nothing.
  HookState unfit = state;
  unfit.tensors.back().data.pop_back();
  const std::string before = SerializeHookState(pair.gpu.Save());
  EXPECT_FALSE(pair.gpu.Load(unfit).ok());
  EXPECT_EQ(SerializeHookState(pair.gpu.Save()), before);
}

// Each rank's own, error and all, goes on bit by bit.
TEST(DevicePowerSgdStateTest, OwnStateIsTakenOverBitByBit) {
  for (const char* more : {",rank=2", ",rank=2,mode=pytorch"}) {
    const auto parameters = OnGpu(Shapes(DType::kFloat32));
    HookWorld world = World(Spec(more), parameters, 2);
    for (int64_t step = 0; step < 5; ++step) {
      world.Step(Local(parameters, 2, step));
    }
    HookWorld other = World(Spec(more), parameters, 2);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_OK(other.hook(rank).LoadOwn(world.SaveOwn(rank), 1));
      EXPECT_EQ(SerializeHookState(other.SaveOwn(rank)),
                SerializeHookState(world.SaveOwn(rank)));
    }
    for (int64_t step = 5; step < 8; ++step) {
      const auto local = Local(parameters, 2, step);
      EXPECT_EQ(other.Step(local), world.Step(local));
    }
  }
}

TEST(DevicePowerSgdStateTest, LoadedQIsUsedOnceWithoutWarmStart) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  Pair pair(Spec(",warm_start=false"), parameters, 2);
  HookState state = pair.cpu.Save();
  const std::vector<double> q(16, 1.0);
  state.tensors.push_back({"q",
                           "w",
                           {1, 16},
                           DType::kFloat64,
                           std::string(reinterpret_cast<const char*>(q.data()),
                                       16 * sizeof(double))});
  for (HookWorld* world : {&pair.cpu, &pair.gpu}) ASSERT_OK(world->Load(state));
  pair.Compare(4, 1e-10);
}

TEST(DevicePowerSgdStateTest, OtherBucketsAndParametersKeepWhatIsKnown) {
  Pair pair(Spec(",rank=2"), Shapes(DType::kFloat64), 2);
  pair.Compare(2, kDouble);
  for (HookWorld* world : {&pair.cpu, &pair.gpu}) {
    world->Rebucket({{8}, {7, 6, 5}, {4, 3, 2, 1}, {0}});
  }
  pair.Compare(2, kDouble);
  const std::vector<ParameterSpec> fewer(pair.parameters.begin() + 1,
                                         pair.parameters.end() - 1);
  pair.cpu.Reconfigure(fewer);
  pair.gpu.Reconfigure(OnGpu(fewer));
  for (int64_t step = 0; step < 2; ++step) {
    const auto local = Local(fewer, 2, step);
    EXPECT_LE(RelativeDifference(pair.gpu.Step(local), pair.cpu.Step(local)),
              1e-10);
  }
}

// 11 kernels and 2 collectives, enqueued twice; then they are recorded.
TEST(DevicePowerSgdStateTest, ManyLaunchesAreOneOnceTheyAreRecorded) {
  const auto parameters = OnGpu(Shapes(DType::kFloat32));
  HookWorld world(Spec(",rank=4"), parameters, 2,
                  {{8, 7, 6, 5, 4, 3, 2, 1, 0}});
  for (int64_t step = 0; step < 2; ++step) {
    world.Step(Local(parameters, 2, step));
  }
  EmulatedRuntime& runtime = world.runtime(0);
  // Not recorded: what is enqueued is counted, with 2 collectives and the Mark
  // of the exchange and of the test.
  const int64_t before = runtime.launches();
  const int64_t collectives = world.collectives();
  world.Step(Local(parameters, 2, 2));
  EXPECT_EQ(world.collectives() - collectives, 2);
  EXPECT_LE(runtime.launches() - before - 2 - 2, 12);
  const int64_t graphs = runtime.graph_launches();
  for (int64_t step = 3; step < 9; ++step) {
    world.Step(Local(parameters, 2, step));
  }
  EXPECT_EQ(runtime.graph_launches() - graphs, 6 - 1);
  EXPECT_EQ(world.collectives() - collectives, 7 * 2);
}

TEST(DevicePowerSgdStateTest, MemoryThatIsOutFailsTheStepOnly) {
  Pair pair(Spec(",rank=2"), Shapes(DType::kFloat64), 1);
  pair.Compare(1, kDouble);
  EmulatedRuntime& runtime = pair.gpu.runtime(0);
  Hook& hook = pair.gpu.hook(0);
  Communicator& communicator = pair.gpu.communicator(0);
  ASSERT_OK(hook.Configure(OnGpu(pair.parameters), 1));
  std::vector<double> values(4);
  Bucket bucket;
  bucket.data = {values.data(), 1, DType::kFloat64, {Device::Kind::kCuda, 0}};
  bucket.gradients = {{7, 0, 1}};
  runtime.FailAllocation(0);
  EXPECT_THAT(hook.Prepare(bucket, communicator),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
  hook.Rollback();
  pair.Compare(2, kDouble);
}

TEST(DevicePowerSgdStateTest, ACommunicatorOfTheCpuIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook("powersgd(start_step=2)"));
  const auto parameters = OnGpu({Parameter("w", {8, 8})});
  ASSERT_OK(hook->Configure(parameters, 1));
  ASSERT_OK(hook->Commit());
  ASSERT_OK(hook->Commit());
  LoopbackCommunicator communicator;
  std::vector<double> values(64);
  Bucket bucket;
  bucket.data = {values.data(), 64, DType::kFloat64, {Device::Kind::kCuda, 0}};
  bucket.gradients = {{0, 0, 64}};
  EXPECT_THAT(hook->Prepare(bucket, communicator),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("GPU 0")));
}

}  // namespace
}  // namespace coxswain::device_powersgd_test
