// Hooks under a reducer whose ranks have weights, and on buckets with a share.

#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/reduce/reducer.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_world.h"
#include "tests/conformance/share_hook.h"

namespace coxswain::weights_test {
namespace {

constexpr int kRanks = 4;
constexpr int kLive = 2;  // the rank whose weight is all there is
// Times the number of ranks it exceeds float16.
constexpr float kLarge = 20000;
constexpr absl::Duration kSoon = absl::Seconds(20);

struct WeightsCase {
  std::string name;
  std::string spec;
  DType dtype;
  double tolerance;
};

std::ostream& operator<<(std::ostream& out, const WeightsCase& of) {
  return out << of.name;
}

// Returns what a hook with factors compresses, and what it does not.
std::vector<ParameterSpec> Parameters(DType dtype, Device device = Device()) {
  std::vector<ParameterSpec> parameters(2);
  parameters[0].name = "matrix";
  parameters[0].shape = {4, 4};
  parameters[1].name = "vector";
  parameters[1].shape = {5};
  for (ParameterSpec& parameter : parameters) {
    parameter.dtype = dtype;
    parameter.device = device;
  }
  return parameters;
}

uint16_t Narrow(DType dtype, float value) {
  return dtype == DType::kFloat16 ? FloatToFloat16(value)
                                  : FloatToBFloat16(value);
}

void Fill(const Span& span, float value) {
  for (int64_t i = 0; i < span.count; ++i) {
    if (span.dtype == DType::kFloat32) {
      static_cast<float*>(span.data)[i] = value;
    } else {
      static_cast<uint16_t*>(span.data)[i] = Narrow(span.dtype, value);
    }
  }
}

double ValueAt(const Span& span, int64_t i) {
  if (span.dtype == DType::kFloat32) {
    return static_cast<const float*>(span.data)[i];
  }
  const uint16_t bits = static_cast<const uint16_t*>(span.data)[i];
  return span.dtype == DType::kFloat16 ? Float16ToFloat(bits)
                                       : BFloat16ToFloat(bits);
}

class WeightsTest : public testing::TestWithParam<WeightsCase> {};

void TrainWithOneLiveRank(const WeightsCase& of, int rank,
                          Communicator* communicator) {
  ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook(of.spec));
  ReducerOptions options;
  options.timeout = kSoon;
  options.uneven_inputs = true;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, Parameters(of.dtype), hook.get(), communicator));
  for (int step = 0; step < 5; ++step) {
    ASSERT_OK(reducer->BeginStep(rank == kLive ? 1 : 0));
    for (const int parameter : {1, 0}) {
      if (rank != kLive) break;
      Fill(reducer->GradientView(parameter), kLarge);
      ASSERT_OK(reducer->MarkReady(parameter));
    }
    ASSERT_OK(reducer->Finish());
    for (const int parameter : {0, 1}) {
      const Span average = reducer->GradientView(parameter);
      for (int64_t i = 0; i < average.count; ++i) {
        EXPECT_NEAR(ValueAt(average, i), kLarge, kLarge * of.tolerance)
            << "step " << step << ", parameter " << parameter;
      }
    }
    ASSERT_OK(reducer->Commit());
  }
}

TEST_P(WeightsTest, TheAverageOfOneLiveRankIsItsGradient) {
  const auto world = InProcessWorld::Create(kRanks, kSoon);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([rank, communicator = world->MakeRank(rank)] {
      TrainWithOneLiveRank(GetParam(), rank, communicator.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns the averages of five steps in which each rank has its share of
// `local[rank]`. Checks that they are the same on all ranks.
std::vector<Gradients> StepsOf(const WeightsCase& of, Device device,
                               const std::vector<double>& shares,
                               const std::vector<Gradients>& local,
                               bool slices = false) {
  size_t made = 0;
  HookWorld world(
      [&] {
        auto hook = MakeHook(of.spec);
        EXPECT_OK(hook);
        return std::make_unique<ShareHook>(*std::move(hook), shares[made++]);
      },
      Parameters(of.dtype, device), static_cast<int>(shares.size()));
  world.KeepSlices(slices);
  std::vector<Gradients> averages;
  for (int step = 0; step < 5; ++step) averages.push_back(world.Step(local));
  return averages;
}

const Device kGpu{Device::Kind::kCuda, 0};

TEST_P(WeightsTest, OnAGpuTheAverageOfOneLiveRankIsItsGradientToo) {
  std::vector<Gradients> local(
      kRanks, {std::vector<double>(16, 0), std::vector<double>(5, 0)});
  local[kLive] = {std::vector<double>(16, kLarge),
                  std::vector<double>(5, kLarge)};
  std::vector<double> shares(kRanks, 1.0 / kRanks);
  shares[kLive] = 1;
  for (const Gradients& average : StepsOf(GetParam(), kGpu, shares, local)) {
    for (const std::vector<double>& values : average) {
      for (const double value : values) {
        EXPECT_NEAR(value, kLarge, kLarge * GetParam().tolerance);
      }
    }
  }
}

TEST_P(WeightsTest, UnevenSharesAreAppliedOnTheCpuAndOnAGpuAlike) {
  const std::vector<double> shares = {0.1, 0.2, 0.7};
  const auto parameters = Parameters(GetParam().dtype);
  std::vector<Gradients> local;
  Gradients expected;
  for (const int rank : {0, 1, 2}) {
    local.push_back(NormalGradients(parameters, 1, rank, 0));
    AddTo(expected, local.back(), shares[static_cast<size_t>(rank)]);
  }
  const auto on_cpu = StepsOf(GetParam(), Device(), shares, local);
  const auto on_gpu = StepsOf(GetParam(), kGpu, shares, local);
  // Before the steps in which factors travel.
  EXPECT_LE(RelativeDifference(on_cpu[0], expected), 2e-2);
  // powersgd adds up in another order there.
  const bool same_bits =
      GetParam().spec.find("powersgd") == std::string::npos ||
      GetParam().spec.find("batched") != std::string::npos;
  for (size_t step = 0; step < on_cpu.size(); ++step) {
    if (same_bits) {
      EXPECT_EQ(on_gpu[step], on_cpu[step]) << step;
    } else {
      EXPECT_LE(RelativeDifference(on_gpu[step], on_cpu[step]), 2e-2) << step;
    }
  }
}

TEST_P(WeightsTest, UnevenSharesAreAppliedToSlicesAlike) {
  const std::vector<double> shares = {0.1, 0.2, 0.7};
  const auto parameters = Parameters(GetParam().dtype);
  std::vector<Gradients> local;
  for (const int rank : {0, 1, 2}) {
    local.push_back(NormalGradients(parameters, 1, rank, 0));
  }
  const auto whole = StepsOf(GetParam(), Device(), shares, local);
  const auto slices = StepsOf(GetParam(), Device(), shares, local, true);
  for (size_t step = 0; step < whole.size(); ++step) {
    if (GetParam().spec == "int8") {
      // Which rounds once less.
      EXPECT_LE(RelativeDifference(slices[step], whole[step]), 2e-2) << step;
    } else {
      EXPECT_EQ(slices[step], whole[step]) << step;
    }
  }
}

// A share that is multiplied in two factors is rounded twice.
TEST(ShareTest, IsOneFactorWithOneRounding) {
  const WeightsCase of = {"", "allreduce", DType::kFloat16, 0};
  const std::vector<double> shares = {0.7, 0.15, 0.15};
  std::vector<Gradients> local(
      3, {std::vector<double>(16, 0), std::vector<double>(5, 0)});
  for (size_t i = 0; i < 16; ++i) {
    local[0][0][i] = 1 + static_cast<double>(37 * i % 1024) / 1024;
  }
  for (const Device& device : {Device(), kGpu}) {
    const Gradients average = StepsOf(of, device, shares, local)[0];
    for (size_t i = 0; i < 16; ++i) {
      const float product = static_cast<float>(local[0][0][i]) * 0.7f;
      EXPECT_EQ(average[0][i], Float16ToFloat(FloatToFloat16(product))) << i;
    }
  }
}

TEST(ShareTest, WrappersAreWhatTheirHookIs) {
  for (const std::string spec :
       {"allreduce", "stats(powersgd)", "fp16(int8)"}) {
    ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook(spec));
    EXPECT_TRUE(hook->applies_share()) << spec;
    EXPECT_EQ(hook->reach(), GradientReach::kAll) << spec;
  }
  for (const std::string spec : {"noop", "stats(noop)", "fp16(noop)"}) {
    ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook(spec));
    EXPECT_TRUE(hook->applies_share()) << spec;
    EXPECT_EQ(hook->reach(), GradientReach::kOwn) << spec;
  }
}

std::vector<WeightsCase> Cases() {
  constexpr DType kSingle = DType::kFloat32;
  constexpr DType kHalf = DType::kFloat16;
  constexpr DType kBrain = DType::kBFloat16;
  constexpr double kOfHalf = 2e-3;
  constexpr double kOfBrain = 2e-2;
  return {
      {"AllReduceFloat16", "allreduce", kHalf, 0},
      {"AllReduceBFloat16", "allreduce", kBrain, kOfBrain},
      {"StatsOfFloat16", "stats(allreduce)", kHalf, 0},
      {"Fp16", "fp16", kSingle, 0},
      {"Fp16CastThenDivide", "fp16(order=cast_then_divide)", kSingle, 0},
      {"Fp16CastThenDivideOfFloat16", "fp16(order=cast_then_divide)", kHalf, 0},
      {"Bf16CastThenDivide", "bf16(order=cast_then_divide)", kSingle, kOfBrain},
      {"Fp16OfAllReduce", "fp16(allreduce)", kSingle, 0},
      {"Fp16OfPowerSgd", "fp16(powersgd(start_step=2))", kSingle, kOfHalf},
      {"PowerSgdFloat16", "powersgd(start_step=2)", kHalf, kOfHalf},
      {"PowerSgdBFloat16", "powersgd(start_step=2)", kBrain, kOfBrain},
      {"AcpSgdFloat16", "acp_sgd(rank=1,start_step=2)", kHalf, kOfHalf},
      // Of rank 1 it is that far off with even weights too, for it mixes
      // parameters in one matrix; but not infinite.
      {"BatchedPowerSgdFloat16", "batched_powersgd(start_step=2)", kHalf, 1},
      {"Int8Float16", "int8", kHalf, kOfBrain},
      {"Int8Float32", "int8", kSingle, kOfBrain},
  };
}

INSTANTIATE_TEST_SUITE_P(Hooks, WeightsTest, testing::ValuesIn(Cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace coxswain::weights_test
