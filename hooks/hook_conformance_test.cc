#include "tests/conformance/hook_conformance.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "hooks/spec.h"

namespace coxswain {
namespace {

int64_t Elements(const std::vector<ParameterSpec>& parameters) {
  int64_t count = 0;
  for (const ParameterSpec& parameter : parameters) count += parameter.count();
  return count;
}

// The slices that a bucket of these parameters has.
BucketSlices SlicesOf(const std::vector<ParameterSpec>& parameters, int ranks) {
  Span data;
  for (const ParameterSpec& parameter : parameters) {
    data.dtype = parameter.dtype;
    data.count += parameter.count();
  }
  return BucketSlices::Of(data, ranks);
}

// A reduce-scatter of all slices, `width` bytes an element.
auto ReduceScatterBytes(int64_t width) {
  return
      [=](const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        return SlicesOf(parameters, step.size).padded() * width;
      };
}

// The same until the hook has started; then what a whole bucket costs.
auto LateSliceBytes(const HookCase& hook, int64_t plain_width) {
  return
      [plain = ReduceScatterBytes(plain_width), whole = hook.bucket_bytes](
          const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        return step.started ? whole(parameters, step) : plain(parameters, step);
      };
}

// A hook that averages all elements, and slices by a reduce-scatter.
HookCase Plain(std::string name, std::string spec, DType dtype, int64_t width,
               double tolerance) {
  HookCase hook =
      PlainHookCase(std::move(name), std::move(spec), dtype, width, tolerance);
  hook.slice_bytes = ReduceScatterBytes(width);
  return hook;
}

// Elements of a parameter that is not compressed, or else of its factors,
// which are n r and m r.
int64_t LowRankElements(const ParameterSpec& parameter, int64_t rank,
                        double rate, bool sends_p, bool sends_q) {
  const int64_t whole = parameter.count();
  if (parameter.shape.size() < 2 || whole == 0) return whole;
  const int64_t n = parameter.shape[0];
  const int64_t m = whole / n;
  const int64_t r = std::min({n, m, rank});
  const bool saves =
      static_cast<double>((n + m) * r) * rate < static_cast<double>(whole);
  if (!saves) return whole;
  return (sends_p ? n * r : 0) + (sends_q ? m * r : 0);
}

// Both factors, at this width.
auto PowerSgdBytes(int64_t rank, double rate, int64_t width) {
  return
      [=](const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        if (!step.started) return Elements(parameters) * width;
        int64_t count = 0;
        for (const ParameterSpec& parameter : parameters) {
          count += LowRankElements(parameter, rank, rate, true, true);
        }
        return count * width;
      };
}

// Both factors of the whole bucket, which is nearly square.
auto BatchedPowerSgdBytes(int64_t rank, int64_t width) {
  return
      [=](const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        const int64_t whole = Elements(parameters);
        if (!step.started || whole == 0) return whole * width;
        int64_t m = 1;
        while (m * m < whole) ++m;
        const int64_t n = (whole + m - 1) / m;
        return (n + m) * std::min({n, m, rank}) * width;
      };
}

// P in odd steps, Q in even ones.
auto AcpSgdBytes(int64_t rank, int64_t width) {
  return
      [=](const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        if (!step.started) return Elements(parameters) * width;
        const bool odd = step.step % 2 == 1;
        int64_t count = 0;
        for (const ParameterSpec& parameter : parameters) {
          count += LowRankElements(parameter, rank, 2, odd, !odd);
        }
        return count * width;
      };
}

constexpr double kHalf = 1e-3;     // a few roundings to 11 bits
constexpr double kBrain = 1e-2;    // to 8 bits
constexpr double kSingle = 1e-6;   // to 24 bits
constexpr double kDouble = 1e-14;  // to 53 bits

// Nothing travels; it is the mean over the ranks that is the average.
HookCase Noop(std::string name, std::string spec, DType dtype,
              double tolerance) {
  HookCase hook =
      PlainHookCase(std::move(name), std::move(spec), dtype, 0, tolerance);
  hook.ranks_differ = true;
  return hook;
}

// Plain until its second step; then the ranks agree in their mean only, and
// send `local_width` bytes an element.
HookCase LocalGradients(std::string name, std::string spec, DType dtype,
                        int64_t width, int64_t local_width, double tolerance) {
  HookCase hook = Noop(std::move(name), std::move(spec), dtype, tolerance);
  hook.start_step = 2;
  hook.bucket_bytes = [=](const std::vector<ParameterSpec>& parameters,
                          const HookStep& step) {
    return Elements(parameters) * (step.started ? local_width : width);
  };
  return hook;
}

// W slices of whole blocks to the all-to-all, and one to the all-gather.
auto Int8Bytes(int64_t block, int64_t plain_width) {
  return
      [=](const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        const int64_t count = Elements(parameters);
        if (!step.started) return count * plain_width;
        const int64_t row = block * step.size;
        const int64_t blocks = (count + row - 1) / row;
        return (step.size + 1) * blocks * (4 + block);
      };
}

// W slices to the all-to-all, of whole blocks and 4 bytes each.
auto Int8SliceBytes(int64_t block, int64_t plain_width) {
  return
      [=](const std::vector<ParameterSpec>& parameters, const HookStep& step) {
        const int64_t each = SlicesOf(parameters, step.size).each;
        if (!step.started) return each * step.size * plain_width;
        if (each == 0) return int64_t{0};
        return step.size * ((each + block - 1) / block * (4 + block) + 4);
      };
}

// Of normal gradients, whose largest in a block of 256 is about 2.8 standard
// deviations, a step's rounding to 8 bits leaves an error of 2.8 / 127 /
// sqrt(12) = 0.0064 of them. Four such errors are between a step's result and
// the average: the last step's and this one's, of both stages. That is 0.013
// together; the rest of the tolerance is for single larger elements.
constexpr double kInt8 = 0.02;

HookCase Int8(std::string name, std::string spec, DType dtype, int64_t block,
              int64_t plain_width, int64_t start_step = 0,
              bool error_feedback = true) {
  HookCase hook;
  hook.name = std::move(name);
  hook.spec = std::move(spec);
  hook.dtype = dtype;
  hook.average_tolerance = kInt8;
  // As many ranks with the same buckets go on bit by bit.
  hook.first_step_tolerance = 0;
  hook.later_tolerance = 0;
  hook.start_step = start_step;
  hook.bucket_bytes = Int8Bytes(block, plain_width);
  hook.slice_bytes = Int8SliceBytes(block, plain_width);
  hook.slices_are_exact = false;
  hook.freezes_layout = true;
  hook.buckets_matter = true;
  hook.error_feedback = error_feedback;
  hook.reports_non_finite = true;
  hook.state_per_rank = true;
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
  hook.freezes_layout = true;
  hook.error_feedback =
      hook.spec.find("error_feedback=false") == std::string::npos;
  hook.drops_errors = hook.spec.find("mode=pytorch") != std::string::npos;
  hook.reports_non_finite = true;
  hook.bucket_bytes = PowerSgdBytes(rank, rate, width);
  hook.slice_bytes = LateSliceBytes(hook, width);
  return hook;
}

HookCase BatchedPowerSgd(std::string name, std::string spec, DType dtype,
                         int64_t rank, int64_t width, double average,
                         double first, double later) {
  HookCase hook = PowerSgd(std::move(name), std::move(spec), dtype, rank, 2,
                           width, average, first, later);
  hook.buckets_matter = true;
  hook.bucket_bytes = BatchedPowerSgdBytes(rank, width);
  hook.slice_bytes = LateSliceBytes(hook, width);
  return hook;
}

HookCase AcpSgd(std::string name, std::string spec, DType dtype, int64_t rank,
                int64_t width, double average, double first, double later) {
  HookCase hook = PowerSgd(std::move(name), std::move(spec), dtype, rank, 2,
                           width, average, first, later);
  hook.bucket_bytes = AcpSgdBytes(rank, width);
  hook.slice_bytes = LateSliceBytes(hook, width);
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
      Noop("Noop", "noop", DType::kFloat32, kSingle),
      Noop("NoopFloat16", "noop", DType::kFloat16, kHalf),
      Noop("StatsOfNoop", "stats(noop)", DType::kFloat32, kSingle),
      Plain("StatsOfAllReduce", "stats(allreduce)", DType::kFloat32, 4,
            kSingle),
      Plain("Fp16OfStats", "fp16(stats(allreduce))", DType::kFloat32, 2, kHalf),
      LocalGradients("PostLocalSgd", "post_local_sgd(start_step=2)",
                     DType::kFloat32, 4, 0, kSingle),
      LocalGradients("PostLocalSgdInPairs",
                     "post_local_sgd(start_step=2,subgroup=2)", DType::kFloat32,
                     4, 4, kSingle),
      LocalGradients("PostLocalSgdInThreesFloat64",
                     "post_local_sgd(start_step=2,subgroup=3)", DType::kFloat64,
                     8, 8, kDouble),
      LocalGradients(
          "PostLocalSgdWithoutGradients",
          "post_local_sgd(start_step=2,subgroup=2,gradient_allreduce=false)",
          DType::kBFloat16, 2, 0, kBrain),
      LocalGradients("Fp16OfPostLocalSgd",
                     "fp16(post_local_sgd(start_step=2,subgroup=2))",
                     DType::kFloat32, 2, 2, kHalf),
      LocalGradients("HierarchicalSgd", "hierarchical_sgd(start_step=2)",
                     DType::kFloat32, 4, 0, kSingle),
      LocalGradients("Diloco", "diloco(start_step=2)", DType::kFloat32, 4, 0,
                     kSingle),
      Int8("Int8", "int8", DType::kFloat32, 256, 4),
      Int8("Int8SmallBlocks", "int8(block=32,start_step=2)", DType::kFloat32,
           32, 4, 2),
      Int8("Int8Float64", "int8(block=100)", DType::kFloat64, 100, 8),
      Int8("Int8Float16", "int8", DType::kFloat16, 256, 2),
      Int8("Int8BFloat16", "int8", DType::kBFloat16, 256, 2),
      Int8("StatsOfInt8", "stats(int8)", DType::kFloat32, 256, 4),
      Int8("Int8NoFeedback", "int8(error_feedback=false)", DType::kFloat32, 256,
           4, 0, false),
      // Only the steps before the start have floats to narrow.
      Int8("Fp16OfInt8", "fp16(int8(start_step=2))", DType::kFloat32, 256, 2,
           2),
      // Of these shapes, rank 4 would compress none.
      AcpSgd("AcpSgd", "acp_sgd(rank=3,start_step=2)", DType::kFloat32, 3, 4,
             -kSingle, 1e-5, 1e-3),
      AcpSgd("AcpSgdFloat64", "acp_sgd(rank=2,start_step=2)", DType::kFloat64,
             2, 8, -kDouble, 1e-12, 1e-10),
      AcpSgd("AcpSgdGramSchmidt",
             "acp_sgd(rank=3,start_step=2,orthogonalize=gram_schmidt)",
             DType::kFloat32, 3, 4, -kSingle, 1e-5, 1e-3),
      AcpSgd("AcpSgdCholeskyQr2",
             "acp_sgd(rank=3,start_step=2,orthogonalize=cholesky_qr2)",
             DType::kFloat32, 3, 4, -kSingle, 1e-5, 1e-3),
      AcpSgd("AcpSgdNoFeedback",
             "acp_sgd(rank=1,start_step=2,error_feedback=false)",
             DType::kFloat32, 1, 4, -kSingle, 1e-5, 1e-3),
      AcpSgd("AcpSgdFloat16", "acp_sgd(rank=2,start_step=2)", DType::kFloat16,
             2, 2, -kHalf, 5e-3, 0.05),
      AcpSgd("Bf16OfAcpSgd", "bf16(acp_sgd(rank=2,start_step=2))",
             DType::kFloat32, 2, 2, -kBrain, 0.05, 0.8),
      BatchedPowerSgd("BatchedPowerSgd", "batched_powersgd(start_step=2)",
                      DType::kFloat32, 1, 4, -kSingle, 1e-5, 1e-3),
      BatchedPowerSgd("BatchedPowerSgdFloat64",
                      "batched_powersgd(rank=2,start_step=2)", DType::kFloat64,
                      2, 8, -kDouble, 1e-12, 1e-10),
      BatchedPowerSgd("BatchedPowerSgdFullRank",
                      "batched_powersgd(rank=64,start_step=2)", DType::kFloat64,
                      64, 8, 1e-13, 1e-12, 1e-12),
      BatchedPowerSgd(
          "BatchedPowerSgdGramSchmidt",
          "batched_powersgd(rank=3,start_step=2,orthogonalize=gram_schmidt)",
          DType::kFloat32, 3, 4, -kSingle, 1e-5, 1e-3),
      BatchedPowerSgd(
          "BatchedPowerSgdCholeskyQr2",
          "batched_powersgd(rank=3,start_step=2,orthogonalize=cholesky_qr2)",
          DType::kFloat32, 3, 4, -kSingle, 1e-5, 1e-3),
      BatchedPowerSgd("BatchedPowerSgdColdStart",
                      "batched_powersgd(start_step=2,warm_start=false)",
                      DType::kFloat32, 1, 4, -kSingle, 1e-5, 1e-3),
      BatchedPowerSgd("BatchedPowerSgdNoFeedback",
                      "batched_powersgd(start_step=2,error_feedback=false)",
                      DType::kFloat32, 1, 4, -kSingle, 1e-5, 1e-3),
      BatchedPowerSgd("BatchedPowerSgdFloat16",
                      "batched_powersgd(start_step=2,error_feedback=false)",
                      DType::kFloat16, 1, 2, -kHalf, 5e-3, 0.05),
      BatchedPowerSgd("BatchedPowerSgdBFloat16",
                      "batched_powersgd(start_step=2)", DType::kBFloat16, 1, 2,
                      -kBrain, 0.05, 0.8),
      BatchedPowerSgd("Fp16OfBatchedPowerSgd",
                      "fp16(batched_powersgd(start_step=2))", DType::kFloat32,
                      1, 2, -kHalf, 5e-3, 0.05),
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
      PowerSgd("PowerSgdPyTorch", "powersgd(rank=2,start_step=2,mode=pytorch)",
               DType::kFloat32, 2, 2, 4, -kSingle, 1e-5, 1e-3),
      PowerSgd("PowerSgdPyTorchFloat64",
               "powersgd(rank=4,start_step=2,min_compression_rate=1,"
               "orthogonalization_epsilon=1e-8,mode=pytorch)",
               DType::kFloat64, 4, 1, 8, -kDouble, 1e-12, 1e-10),
      PowerSgd("PowerSgdCholeskyQr2",
               "powersgd(rank=3,start_step=2,orthogonalize=cholesky_qr2)",
               DType::kFloat32, 3, 2, 4, -kSingle, 1e-5, 1e-3),
      PowerSgd("PowerSgdGramSchmidt",
               "powersgd(rank=3,start_step=2,orthogonalize=gram_schmidt)",
               DType::kFloat32, 3, 2, 4, -kSingle, 1e-5, 1e-3),
      // Roundings to 16 bits differ between the runs, and the power iteration
      // on noise amplifies them by about 1.45 from step to step: of two units
      // of 2^-11 in the first step it makes 80, or 4%, in the eleventh, as the
      // median of many draws of gradients, and more than 200 in one of eight.
      // No bound follows. The draws of the suite are fixed, and come to 6%;
      // 200 units are the later tolerance of float16 here, and with units of
      // 2^-8 that of bfloat16. What holds tightly is the first step, and that
      // no error is lost in all of them, which the suite checks.
      PowerSgd("PowerSgdFloat16", "powersgd(rank=2,start_step=2)",
               DType::kFloat16, 2, 2, 2, -kHalf, 5e-3, 0.1),
      PowerSgd("PowerSgdBFloat16", "powersgd(rank=2,start_step=2)",
               DType::kBFloat16, 2, 2, 2, -kBrain, 0.05, 0.8),
      PowerSgd("Fp16OfPowerSgd", "fp16(powersgd(rank=2,start_step=2))",
               DType::kFloat32, 2, 2, 2, -kHalf, 5e-3, 0.05),
      PowerSgd("StatsOfFp16OfPowerSgd",
               "stats(fp16(powersgd(rank=2,start_step=2)))", DType::kFloat32, 2,
               2, 2, -kHalf, 5e-3, 0.05),
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
