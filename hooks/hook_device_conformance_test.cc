#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/hook_conformance.h"

// Hooks on buckets in a GPU's memory, an emulated one's: those with a path of
// their own there, wrappers around them, and a hook that is staged.

namespace coxswain::hook_device_conformance_test {
namespace {

constexpr double kHalf = 1e-3;     // a few roundings to 11 bits
constexpr double kBrain = 1e-2;    // to 8 bits
constexpr double kSingle = 1e-6;   // to 24 bits
constexpr double kDouble = 1e-14;  // to 53 bits

HookCase OnDevice(HookCase hook) {
  hook.device = Device{Device::Kind::kCuda, 0};
  return hook;
}

// On slices a reduce-scatter of elements of this width.
auto ReduceScatterBytes(int64_t width) {
  return
      [=](const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        Span data;
        for (const ParameterSpec& parameter : parameters) {
          data.dtype = parameter.dtype;
          data.count += parameter.count();
        }
        return BucketSlices::Of(data, step.size).padded() * width;
      };
}

HookCase Plain(std::string name, std::string spec, DType dtype, int64_t width,
               double tolerance) {
  HookCase hook = OnDevice(
      PlainHookCase(std::move(name), std::move(spec), dtype, width, tolerance));
  hook.slice_bytes = ReduceScatterBytes(width);
  return hook;
}

HookCase Noop() {
  HookCase hook =
      OnDevice(PlainHookCase("Noop", "noop", DType::kFloat32, 0, kSingle));
  hook.ranks_differ = true;
  return hook;
}

// Without a path of its own there. Both factors of the whole bucket travel,
// which is nearly square.
HookCase StagedBatchedPowerSgd() {
  HookCase hook = Plain("BatchedPowerSgd", "batched_powersgd(start_step=2)",
                        DType::kFloat32, 4, -kSingle);
  hook.first_step_tolerance = 1e-5;
  hook.later_tolerance = 1e-3;
  hook.start_step = 2;
  hook.freezes_layout = true;
  hook.buckets_matter = true;
  hook.error_feedback = true;
  hook.reports_non_finite = true;
  hook.bucket_bytes = [](const std::vector<ParameterSpec>& parameters,
                         const HookStep& step) {
    int64_t whole = 0;
    for (const ParameterSpec& parameter : parameters) {
      whole += parameter.count();
    }
    if (!step.started || whole == 0) return whole * 4;
    int64_t side = 1;
    while (side * side < whole) ++side;
    return ((whole + side - 1) / side + side) * 4;
  };
  // By way of the host's memory, where slices are reduce-scattered.
  hook.slice_bytes = [whole = hook.bucket_bytes, plain = ReduceScatterBytes(4)](
                         const std::vector<ParameterSpec>& parameters,
                         const HookStep& step) {
    return step.started ? whole(parameters, step) : plain(parameters, step);
  };
  return hook;
}

std::vector<HookCase> Cases() {
  return {
      Plain("AllReduceFloat32", "allreduce", DType::kFloat32, 4, kSingle),
      Plain("AllReduceFloat64", "allreduce", DType::kFloat64, 8, kDouble),
      Plain("AllReduceBFloat16", "allreduce", DType::kBFloat16, 2, kBrain),
      Plain("Fp16Float32", "fp16", DType::kFloat32, 2, kHalf),
      Plain("Fp16BFloat16", "fp16", DType::kBFloat16, 2, kBrain),
      Plain("Bf16Float64", "bf16", DType::kFloat64, 2, kBrain),
      Plain("Bf16CastThenDivide", "bf16(order=cast_then_divide)",
            DType::kFloat32, 2, kBrain),
      Plain("Fp16OfAllReduce", "fp16(allreduce)", DType::kFloat32, 2, kHalf),
      Plain("StatsOfAllReduce", "stats(allreduce)", DType::kFloat32, 4,
            kSingle),
      Noop(),
      StagedBatchedPowerSgd(),
  };
}

INSTANTIATE_TEST_SUITE_P(OnDevice, HookConformance, testing::ValuesIn(Cases()),
                         HookCaseName);

}  // namespace
}  // namespace coxswain::hook_device_conformance_test
