#include "tests/conformance/hook_conformance.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hooks/registry.h"
#include "hooks/spec.h"

namespace coxswain {
namespace {

int64_t Elements(const std::vector<ParameterSpec>& parameters) {
  int64_t count = 0;
  for (const ParameterSpec& parameter : parameters) count += parameter.count();
  return count;
}

// Every element once, at this width.
auto PlainBytes(int64_t width) {
  return [width](const std::vector<ParameterSpec>& parameters,
                 const HookStep&) { return Elements(parameters) * width; };
}

// Raw elements, (n + m) r per matrix and one flag per bucket, at this width.
auto PowerSgdBytes(int64_t rank, double rate, int64_t width) {
  return
      [=](const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        if (!step.started) return Elements(parameters) * width;
        int64_t count = 1;
        for (const ParameterSpec& parameter : parameters) {
          const int64_t whole = parameter.count();
          if (parameter.shape.size() < 2 || whole == 0) {
            count += whole;
            continue;
          }
          const int64_t n = parameter.shape[0];
          const int64_t m = whole / n;
          const int64_t factors = (n + m) * std::min({n, m, rank});
          const bool saves =
              static_cast<double>(factors) * rate < static_cast<double>(whole);
          count += saves ? factors : whole;
        }
        return count * width;
      };
}

constexpr double kHalf = 1e-3;     // a few roundings to 11 bits
constexpr double kBrain = 1e-2;    // to 8 bits
constexpr double kSingle = 1e-6;   // to 24 bits
constexpr double kDouble = 1e-14;  // to 53 bits

HookCase Plain(std::string name, std::string spec, DType dtype, int64_t width,
               double tolerance) {
  HookCase hook;
  hook.name = std::move(name);
  hook.spec = std::move(spec);
  hook.dtype = dtype;
  hook.average_tolerance = tolerance;
  hook.first_step_tolerance = 2 * tolerance;
  hook.later_tolerance = 2 * tolerance;
  hook.bucket_bytes = PlainBytes(width);
  return hook;
}

HookCase PowerSgd(std::string name, std::string spec, DType dtype, int64_t rank,
                  double rate, int64_t width, double average, double first,
                  double later) {
  HookCase hook;
  hook.name = std::move(name);
  hook.spec = std::move(spec);
  hook.dtype = dtype;
  hook.average_tolerance = average;
  hook.first_step_tolerance = first;
  hook.later_tolerance = later;
  hook.start_step = 2;
  hook.bucket_bytes = PowerSgdBytes(rank, rate, width);
  return hook;
}

const std::vector<HookCase>& Cases() {
  static const auto* cases = new std::vector<HookCase>{
      Plain("AllReduceFloat32", "allreduce", DType::kFloat32, 4, kSingle),
      Plain("AllReduceFloat64", "allreduce", DType::kFloat64, 8, kDouble),
      Plain("AllReduceFloat16", "allreduce", DType::kFloat16, 2, kHalf),
      Plain("AllReduceBFloat16", "allreduce", DType::kBFloat16, 2, kBrain),
      Plain("Fp16Float32", "fp16", DType::kFloat32, 2, kHalf),
      Plain("Fp16Float64", "fp16", DType::kFloat64, 2, kHalf),
      Plain("Fp16CastThenDivide", "fp16(order=cast_then_divide)",
            DType::kFloat32, 2, kHalf),
      Plain("Fp16BFloat16", "fp16", DType::kBFloat16, 2, kBrain),
      Plain("Bf16Float32", "bf16", DType::kFloat32, 2, kBrain),
      Plain("Bf16Float64", "bf16", DType::kFloat64, 2, kBrain),
      Plain("Bf16CastThenDivide", "bf16(order=cast_then_divide)",
            DType::kFloat32, 2, kBrain),
      Plain("Fp16OfAllReduce", "fp16(allreduce)", DType::kFloat32, 2, kHalf),
      Plain("Bf16OfAllReduce", "bf16(allreduce)", DType::kFloat64, 2, kBrain),
      // All columns: the projection loses nothing.
      PowerSgd("PowerSgdFullRank",
               "powersgd(rank=64,start_step=2,min_compression_rate=0)",
               DType::kFloat32, 64, 0, 4, 5e-6, 5e-6, 1e-4),
      PowerSgd("PowerSgdFullRankFloat64",
               "powersgd(rank=64,start_step=2,min_compression_rate=0)",
               DType::kFloat64, 64, 0, 8, 1e-13, 1e-12, 1e-12),
      PowerSgd("PowerSgdRank1", "powersgd(start_step=2)", DType::kFloat32, 1, 2,
               4, -kSingle, 1e-6, 1e-4),
      PowerSgd("PowerSgdRank2",
               "powersgd(rank=2,start_step=2,min_compression_rate=1)",
               DType::kFloat32, 2, 1, 4, -kSingle, 1e-6, 1e-4),
      PowerSgd("PowerSgdFloat64",
               "powersgd(rank=3,start_step=2,min_compression_rate=1)",
               DType::kFloat64, 3, 1, 8, -kDouble, 1e-12, 1e-12),
      PowerSgd("PowerSgdColdStart",
               "powersgd(rank=2,start_step=2,warm_start=false)",
               DType::kFloat32, 2, 2, 4, -kSingle, 1e-6, 1e-4),
      PowerSgd("PowerSgdNoFeedback",
               "powersgd(rank=2,start_step=2,error_feedback=false)",
               DType::kFloat32, 2, 2, 4, -kSingle, 1e-6, 1e-4),
      // Roundings to 16 bits differ between the runs, and the power iteration
      // on noise amplifies them from step to step: only the first step can
      // be held tightly.
      PowerSgd("PowerSgdBFloat16", "powersgd(rank=2,start_step=2)",
               DType::kBFloat16, 2, 2, 2, -kBrain, 0.05, 0.8),
      PowerSgd("Fp16OfPowerSgd", "fp16(powersgd(rank=2,start_step=2))",
               DType::kFloat32, 2, 2, 2, -kHalf, 5e-3, 0.05),
      PowerSgd("Bf16OfPowerSgd", "bf16(powersgd(rank=2,start_step=2))",
               DType::kFloat32, 2, 2, 2, -kBrain, 0.05, 0.8),
  };
  return *cases;
}

INSTANTIATE_TEST_SUITE_P(Hooks, HookConformance, testing::ValuesIn(Cases()),
                         HookCaseName);

TEST(HookConformanceTest, EveryHookOfTheRegistryIsHeldToIt) {
  std::set<std::string> covered;
  for (const HookCase& hook : Cases()) {
    covered.insert(ParseSpec(hook.spec)->name);
  }
  for (const HookDescription& hook : ListHooks()) {
    EXPECT_EQ(covered.count(hook.name), 1u) << hook.name;
  }
}

}  // namespace
}  // namespace coxswain
