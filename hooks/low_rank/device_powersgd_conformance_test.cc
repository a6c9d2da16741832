#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/reduce/bucket_slices.h"
#include "gtest/gtest.h"
#include "tests/conformance/hook_conformance.h"

namespace coxswain {
namespace {

int64_t ElementsSent(const ParameterSpec& parameter, int64_t rank,
                     double rate) {
  const int64_t whole = parameter.count();
  if (parameter.shape.size() < 2 || whole == 0) return whole;
  const int64_t n = parameter.shape[0];
  const int64_t m = whole / n;
  const int64_t factors = (n + m) * std::min({n, m, rank});
  return static_cast<double>(factors) * rate < static_cast<double>(whole)
             ? factors
             : whole;
}

HookCase OnGpu(std::string name, const std::string& options, DType dtype,
               int64_t rank, double rate, double first, double later) {
  HookCase hook;
  hook.name = std::move(name);
  hook.spec = "powersgd(start_step=2" + options + ")";
  hook.dtype = dtype;
  hook.device = {Device::Kind::kCuda, 0};
  hook.average_tolerance = dtype == DType::kFloat16 ? -1e-3 : -1e-6;
  hook.first_step_tolerance = first;
  hook.later_tolerance = later;
  hook.start_step = 2;
  hook.freezes_layout = true;
  hook.error_feedback = options.find("error_feedback=false") == options.npos;
  hook.drops_errors = options.find("mode=pytorch") != options.npos;
  hook.reports_non_finite = true;
  hook.bucket_bytes = [=](const std::vector<ParameterSpec>& parameters,
                          const HookStep& step) {
    int64_t count = 0;
    for (const ParameterSpec& parameter : parameters) {
      count += step.started ? ElementsSent(parameter, rank, rate)
                            : parameter.count();
    }
    return count * static_cast<int64_t>(SizeOf(dtype));
  };
  // Until it starts, slices are reduce-scattered.
  hook.slice_bytes = [whole = hook.bucket_bytes, dtype](
                         const std::vector<ParameterSpec>& parameters,
                         const HookStep& step) {
    if (step.started) return whole(parameters, step);
    Span data;
    data.dtype = dtype;
    for (const ParameterSpec& parameter : parameters) {
      data.count += parameter.count();
    }
    return BucketSlices::Of(data, step.size).padded() *
           static_cast<int64_t>(SizeOf(dtype));
  };
  return hook;
}

INSTANTIATE_TEST_SUITE_P(
    DevicePowerSgd, HookConformance,
    testing::Values(OnGpu("Rank1", "", DType::kFloat32, 1, 2, 1e-6, 1e-4),
                    OnGpu("Rank3Double", ",rank=3,min_compression_rate=1",
                          DType::kFloat64, 3, 1, 1e-12, 1e-11),
                    OnGpu("ColdStart", ",rank=2,warm_start=false",
                          DType::kFloat32, 2, 2, 1e-6, 1e-4),
                    OnGpu("NoFeedback", ",rank=2,error_feedback=false",
                          DType::kFloat32, 2, 2, 1e-6, 1e-4),
                    OnGpu("PyTorch", ",rank=2,mode=pytorch", DType::kFloat32, 2,
                          2, 1e-5, 1e-3),
                    // For 0.1 see hooks/hook_conformance_test.cc.
                    OnGpu("Float16", ",rank=2", DType::kFloat16, 2, 2, 5e-3,
                          0.1)),
    HookCaseName);

}  // namespace
}  // namespace coxswain
