#include "client/device/arithmetic.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/random.h"
#include "base/reduce_elements.h"
#include "client/device/tensor.h"
#include "client/reduce/gradient_statistics.h"
#include "gtest/gtest.h"

// Against the CPU's functions, bit for bit.

namespace coxswain {
namespace {

const DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                        DType::kBFloat16};
// Around the borders of lanes, chunks and blocks.
const int64_t kCounts[] = {0,    1,    2,    15,   16,    17,
                           2047, 2048, 2049, 4096, 40001, 600001};

class AtOnce : public HostStream {
 public:
  void Enqueue(std::function<void()> work) override { work(); }
};

std::string Pattern(DType dtype, int64_t count, uint64_t seed) {
  std::string bytes(static_cast<size_t>(count) * SizeOf(dtype), '\0');
  const CounterRandom random(seed, static_cast<uint64_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    // One in five is subnormal in float16.
    const double value =
        (i % 5 == 3 ? 0x1p-17 : 1) * random.Normal(static_cast<uint64_t>(i));
    const auto single = static_cast<float>(value);
    char* const to = bytes.data() + i * static_cast<int64_t>(SizeOf(dtype));
    const uint16_t half = FloatToFloat16(single);
    const uint16_t brain = FloatToBFloat16(single);
    if (dtype == DType::kFloat32) std::memcpy(to, &single, 4);
    if (dtype == DType::kFloat64) std::memcpy(to, &value, 8);
    if (dtype == DType::kFloat16) std::memcpy(to, &half, 2);
    if (dtype == DType::kBFloat16) std::memcpy(to, &brain, 2);
  }
  return bytes;
}

Span SpanOf(std::string& bytes, DType dtype) {
  Span span;
  span.data = bytes.data();
  span.count = static_cast<int64_t>(bytes.size() / SizeOf(dtype));
  span.dtype = dtype;
  return span;
}

std::vector<DeviceStatistics> MeasureRuns(const Span& span,
                                          const std::vector<int64_t>& begin) {
  AtOnce stream;
  LaunchTarget target;
  target.host = &stream;
  const int runs = static_cast<int>(begin.size()) - 1;
  const DeviceStatistics poison = {-1, -1};
  std::vector<DeviceStatistics> scratch(
      static_cast<size_t>(ScratchForMeasure(begin.data(), runs)) + 1, poison);
  std::vector<DeviceStatistics> results(static_cast<size_t>(runs), poison);
  MeasureOnDevice(&target, span.dtype, span.data, begin.data(), runs,
                  scratch.data(), results.data());
  EXPECT_EQ(target.error, 0);
  EXPECT_EQ(scratch.back().non_finite, -1) << "wrote past its scratch";
  return results;
}

void ExpectLikeTheCpu(const Span& span, const std::vector<int64_t>& begin) {
  const std::vector<DeviceStatistics> results = MeasureRuns(span, begin);
  for (size_t r = 0; r < results.size(); ++r) {
    SCOPED_TRACE(r);
    const GradientStatistics expected =
        Measure(span.Slice(begin[r], begin[r + 1] - begin[r]));
    if (std::isnan(expected.sum_of_squares)) {
      EXPECT_TRUE(std::isnan(results[r].sum_of_squares));
    } else {
      EXPECT_EQ(results[r].sum_of_squares, expected.sum_of_squares);
    }
    EXPECT_EQ(results[r].non_finite, expected.non_finite);
  }
}

TEST(ArithmeticTest, ScalesLikeTheCpu) {
  AtOnce stream;
  for (const DType dtype : kTypes) {
    for (const int64_t count : kCounts) {
      for (const double factor : {0.0, 1.0, 1.0 / 3, -1e30, 0x1p-20}) {
        SCOPED_TRACE(testing::Message()
                     << NameOf(dtype) << " x " << count << " by " << factor);
        std::string in = Pattern(dtype, count, 5);
        std::string expected = in;
        Scale(SpanOf(expected, dtype), factor);
        LaunchTarget target;
        target.host = &stream;
        std::string out(in.size() + 8, 'x');
        ScaleOnDevice(&target, dtype, in.data(), out.data(), count, factor);
        EXPECT_TRUE(out == expected + "xxxxxxxx");
        ScaleOnDevice(&target, dtype, in.data(), in.data(), count, factor);
        EXPECT_TRUE(in == expected);
        EXPECT_EQ(target.launches, count == 0 ? 0 : 2);
      }
    }
  }
}

TEST(ArithmeticTest, AddsLikeTheCpu) {
  AtOnce stream;
  for (const DType dtype : kTypes) {
    for (const int64_t count : kCounts) {
      SCOPED_TRACE(testing::Message() << NameOf(dtype) << " x " << count);
      const std::string from = Pattern(dtype, count, 5);
      std::string to = Pattern(dtype, count, 9);
      std::string expected = to;
      ReduceElements(dtype, ElementOp::kSum, expected.data(), expected.data(),
                     from.data(), static_cast<size_t>(count));
      LaunchTarget target;
      target.host = &stream;
      to += "xxxxxxxx";
      AddOnDevice(&target, dtype, from.data(), to.data(), count);
      EXPECT_TRUE(to == expected + "xxxxxxxx");
      EXPECT_EQ(target.launches, count == 0 ? 0 : 1);
    }
  }
}

TEST(ArithmeticTest, MeasuresLikeTheCpu) {
  for (const DType dtype : kTypes) {
    for (const int64_t count : kCounts) {
      SCOPED_TRACE(testing::Message() << NameOf(dtype) << " x " << count);
      std::string values = Pattern(dtype, count, 6);
      ExpectLikeTheCpu(SpanOf(values, dtype), {0, count});
    }
  }
}

TEST(ArithmeticTest, MeasuresRunsByThemselves) {
  std::string values = Pattern(DType::kFloat32, 30000, 7);
  const Span span = SpanOf(values, DType::kFloat32);
  ExpectLikeTheCpu(span, {0, 0, 3, 3, 2051, 4099, 20000, 30000, 30000});
  // More of them than one launch takes.
  std::vector<int64_t> begin(300);
  std::iota(begin.begin(), begin.end(), 0);
  for (int64_t& b : begin) b *= 97;
  ExpectLikeTheCpu(span, begin);
}

TEST(ArithmeticTest, CountsWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::string values = Pattern(DType::kFloat32, 5000, 8);
  const Span span = SpanOf(values, DType::kFloat32);
  float* const elements = static_cast<float*>(span.data);
  elements[17] = kInfinity;
  ExpectLikeTheCpu(span, {0, 100, 5000});
  elements[18] = -kInfinity;
  elements[4999] = std::numeric_limits<float>::quiet_NaN();
  ExpectLikeTheCpu(span, {0, 100, 5000});
  EXPECT_EQ(MeasureRuns(span, {0, 5000})[0].non_finite, 3);
}

TEST(ArithmeticTest, EveryHalfIsMeasuredLikeTheCpu) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::string values(2 << 16, '\0');
    for (int i = 0; i < 1 << 16; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(values.data() + 2 * i, &bits, 2);
    }
    std::vector<int64_t> begin;
    for (int64_t b = 0; b <= 1 << 16; b += 16) begin.push_back(b);
    ExpectLikeTheCpu(SpanOf(values, dtype), begin);
  }
}

TEST(ArithmeticTest, PlacesBeyondTwoToThe31AreReached) {
  // Two runs that together have more elements than 32 bits count; what is
  // measured is the last chunk, whose numbers alone are real.
  std::vector<float> real(100, 2);
  constexpr int64_t kFar = int64_t{5} << 30;
  arithmetic::Runs runs;
  runs.count = 2;
  runs.begin[1] = kFar;
  runs.begin[2] = kFar + 100;
  runs.first_chunk[1] = kFar / arithmetic::Runs::kChunk;
  runs.first_chunk[2] = runs.first_chunk[1] + 1;
  EXPECT_EQ(runs.RunOf(runs.first_chunk[1] - 1), 0);
  EXPECT_EQ(runs.RunOf(runs.first_chunk[1]), 1);

  using Program = arithmetic::MeasureChunks<OwnElement<float>>;
  const int64_t last = runs.first_chunk[1];
  std::vector<DeviceStatistics> result(1);
  const auto behind = [](auto* pointer, int64_t elements) {
    using Pointer = decltype(pointer);
    // Volatile, so that the compiler does not know where it points to.
    volatile uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    return reinterpret_cast<Pointer>(
        address - static_cast<uintptr_t>(elements) * sizeof(*pointer));
  };
  const Program program{behind(real.data(), kFar), behind(result.data(), last),
                        runs};
  Program::Shared shared;
  Program::Thread thread;
  BlockPlace at;
  at.block = last / Program::kChunks;
  for (int phase = 0; phase < program.phases(); ++phase) {
    for (int lane = 0; lane < Program::kLanes; ++lane) {
      at.thread =
          static_cast<int>(last % Program::kChunks) * Program::kLanes + lane;
      program.Run(phase, at, &thread, &shared);
    }
  }
  EXPECT_EQ(result[0].sum_of_squares, 400);
}

}  // namespace
}  // namespace coxswain
