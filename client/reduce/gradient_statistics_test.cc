#include "client/reduce/gradient_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/highway.h"

namespace coxswain {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                        DType::kBFloat16};
// Around the borders of what is computed together.
const int64_t kCounts[] = {0,    1,    2,    15,   16,   17,   31,
                           2047, 2048, 2049, 4096, 4111, 10000};

template <typename T>
void Write(void* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}
template <typename T>
T Read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Elements of one type, that begin at any byte, with some around them.
class Values {
 public:
  Values(DType dtype, int64_t count, int64_t offset = 0)
      : dtype_(dtype),
        count_(count),
        offset_(offset),
        bytes_(static_cast<size_t>(kAround * 2 + span_bytes()), 'x') {}

  Span span() {
    Span span;
    span.data = bytes_.data() + kAround + offset_;
    span.count = count_;
    span.dtype = dtype_;
    return span;
  }
  int64_t count() const { return count_; }

  void Set(int64_t i, double value) {
    void* to = At(i);
    const auto single = static_cast<float>(value);
    if (dtype_ == DType::kFloat32) Write(to, single);
    if (dtype_ == DType::kFloat64) Write(to, value);
    if (dtype_ == DType::kFloat16) Write(to, FloatToFloat16(single));
    if (dtype_ == DType::kBFloat16) Write(to, FloatToBFloat16(single));
  }
  double Get(int64_t i) {
    const void* from = At(i);
    if (dtype_ == DType::kFloat32) return Read<float>(from);
    if (dtype_ == DType::kFloat64) return Read<double>(from);
    const auto bits = Read<uint16_t>(from);
    return dtype_ == DType::kFloat16 ? Float16ToFloat(bits)
                                     : BFloat16ToFloat(bits);
  }
  // All bytes, those around the elements too.
  const std::string& bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAround = 64;

  int64_t span_bytes() const {
    return count_ * static_cast<int64_t>(SizeOf(dtype_));
  }
  void* At(int64_t i) {
    return bytes_.data() + kAround + offset_ +
           i * static_cast<int64_t>(SizeOf(dtype_));
  }

  const DType dtype_;
  const int64_t count_;
  const int64_t offset_;
  std::string bytes_;
};

Values RandomValues(DType dtype, int64_t count, int64_t offset = 0) {
  Values values(dtype, count, offset);
  const CounterRandom random(17, static_cast<uint64_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    // One in five is subnormal in float16.
    const double size = i % 5 == 3 ? 0x1p-17 : 1;
    values.Set(i, size * random.Normal(static_cast<uint64_t>(i)));
  }
  return values;
}

// Runs with each instruction set of this CPU.
template <class Run>
void ForEveryTarget(const Run& run) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    run();
  }
  hwy::SetSupportedTargetsForTest(0);
}

template <class Run>
void ForEveryTypeAndCount(const Run& run) {
  for (const DType dtype : kTypes) {
    for (const int64_t count : kCounts) {
      SCOPED_TRACE(testing::Message() << count << " x " << NameOf(dtype));
      run(dtype, count);
    }
  }
}

// Returns the order of additions that all machines share.
double SumInOrder(Values* values) {
  double total = 0;
  for (int64_t begin = 0; begin < values->count(); begin += 2048) {
    double lanes[16] = {};
    for (int64_t i = begin; i < std::min(begin + 2048, values->count()); ++i) {
      lanes[i % 16] += values->Get(i) * values->Get(i);
    }
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    total += lanes[0];
  }
  return total;
}

TEST(GradientStatisticsTest, SumsUpSquaresInOneOrderOnAllMachines) {
  ForEveryTypeAndCount([](DType dtype, int64_t count) {
    Values values = RandomValues(dtype, count);
    const double expected = SumInOrder(&values);
    long double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      sum += static_cast<long double>(values.Get(i)) * values.Get(i);
    }
    EXPECT_NEAR(expected, static_cast<double>(sum), 1e-14 * expected);
    ForEveryTarget([&] {
      const GradientStatistics got = Measure(values.span());
      EXPECT_EQ(got.sum_of_squares, expected);
      EXPECT_EQ(got.non_finite, 0);
    });
  });
}

TEST(GradientStatisticsTest, MemoryNeedNotBeAligned) {
  for (const DType dtype : kTypes) {
    Values even = RandomValues(dtype, 4111);
    Values odd = RandomValues(dtype, 4111, static_cast<int64_t>(SizeOf(dtype)));
    ForEveryTarget([&] {
      EXPECT_EQ(Measure(even.span()).sum_of_squares,
                Measure(odd.span()).sum_of_squares);
    });
  }
}

TEST(GradientStatisticsTest, CopiesByteByByteAndMeasuresTheSame) {
  ForEveryTypeAndCount([](DType dtype, int64_t count) {
    Values values = RandomValues(dtype, count);
    if (count > 3) {
      values.Set(1, -0.0);
      values.Set(2, -kNaN);
    }
    ForEveryTarget([&] {
      const GradientStatistics expected = Measure(values.span());
      Values copy(dtype, count);
      const auto got = CopyAndMeasure(values.span(), copy.span().data);
      // What lies around is as it was.
      EXPECT_EQ(copy.bytes(), values.bytes());
      EXPECT_EQ(got.non_finite, expected.non_finite);
      EXPECT_EQ(std::memcmp(&got.sum_of_squares, &expected.sum_of_squares,
                            sizeof(double)),
                0);
    });
  });
}

TEST(GradientStatisticsTest, CountsWhatIsNotFinite) {
  for (const DType dtype : kTypes) {
    // In a vector, in what is left of a block, in the first and last block.
    const std::vector<int64_t> places = {0, 7, 2047, 2048, 4096, 4109, 4110};
    for (const double bad : {kInfinity, -kInfinity, kNaN}) {
      Values values = RandomValues(dtype, 4111);
      int64_t expected = 0;
      for (const int64_t place : places) {
        values.Set(place, bad);
        ++expected;
        ForEveryTarget([&] {
          const GradientStatistics got = Measure(values.span());
          EXPECT_EQ(got.non_finite, expected) << NameOf(dtype) << " " << bad;
          EXPECT_EQ(std::isnan(got.sum_of_squares), std::isnan(bad));
          EXPECT_FALSE(std::isfinite(got.sum_of_squares));
        });
      }
    }
  }
}

TEST(GradientStatisticsTest, ANaNHasOnePattern) {
  const double expected = kNaN;
  for (const DType dtype : kTypes) {
    Values values = RandomValues(dtype, 40);
    values.Set(20, kInfinity);
    values.Set(21, std::nan("77"));
    values.Set(39, -kNaN);
    ForEveryTarget([&] {
      const double sum = Measure(values.span()).sum_of_squares;
      EXPECT_EQ(std::memcmp(&sum, &expected, sizeof(sum)), 0);
    });
  }
}

TEST(GradientStatisticsTest, LargeElementsAreFinite) {
  // Squares of the largest floats are far below the largest double's.
  Values floats(DType::kFloat32, 100);
  for (int64_t i = 0; i < 100; ++i) floats.Set(i, 3e38);
  EXPECT_NEAR(Measure(floats.span()).sum_of_squares / 9e78, 1, 1e-6);
  // Those of large doubles are not.
  Values doubles(DType::kFloat64, 100);
  doubles.Set(0, 0);
  for (int64_t i = 0; i < 100; ++i) doubles.Set(i, 1e200);
  const GradientStatistics got = Measure(doubles.span());
  EXPECT_EQ(got.sum_of_squares, kInfinity);
  EXPECT_EQ(got.non_finite, 0);
}

TEST(GradientStatisticsTest, SumsAdd) {
  GradientStatistics sum{2, 3};
  sum.Add({0.5, 4});
  EXPECT_EQ(sum.sum_of_squares, 2.5);
  EXPECT_EQ(sum.non_finite, 7);
}

TEST(GradientStatisticsTest, ScalesInTheTypesPrecision) {
  constexpr double kThird = 1.0 / 3.0;
  ForEveryTypeAndCount([&](DType dtype, int64_t count) {
    Values expected = RandomValues(dtype, count);
    for (int64_t i = 0; i < count; ++i) {
      // The product of floats is exact in double, and rounded once by Set;
      // where it is rounded to 16 bits, it has been to 24 before.
      const double value = expected.Get(i);
      if (dtype == DType::kFloat64) expected.Set(i, value * kThird);
      const auto single = static_cast<float>(value);
      const float product = single * static_cast<float>(kThird);
      if (dtype != DType::kFloat64) expected.Set(i, product);
    }
    ForEveryTarget([&] {
      Values values = RandomValues(dtype, count);
      Values copy(dtype, count);
      CopyScaled(values.span(), kThird, copy.span().data);
      EXPECT_EQ(copy.bytes(), expected.bytes());
      EXPECT_EQ(values.bytes(), RandomValues(dtype, count).bytes());
      Scale(values.span(), kThird);
      EXPECT_EQ(values.bytes(), expected.bytes());
    });
  });
}

TEST(GradientStatisticsTest, AddsInTheTypesPrecision) {
  constexpr double kThird = 1.0 / 3.0;
  ForEveryTypeAndCount([&](DType dtype, int64_t count) {
    Values expected = RandomValues(dtype, count);
    for (int64_t i = 0; i < count; ++i) {
      const double value = expected.Get(i);
      const auto single = static_cast<float>(value);
      const float sum = single + single * static_cast<float>(kThird);
      expected.Set(i, dtype == DType::kFloat64 ? value + value * kThird : sum);
    }
    ForEveryTarget([&] {
      Values values = RandomValues(dtype, count);
      Values sums = RandomValues(dtype, count);
      AddScaled(values.span(), kThird, sums.span().data);
      EXPECT_EQ(sums.bytes(), expected.bytes());
      EXPECT_EQ(values.bytes(), RandomValues(dtype, count).bytes());
    });
  });
}

TEST(GradientStatisticsTest, ScalesSmallAndLargeElements) {
  for (const DType dtype : kTypes) {
    ForEveryTarget([&] {
      Values values(dtype, 40);
      for (int64_t i = 0; i < 40; ++i) values.Set(i, 1);
      values.Set(0, kInfinity);
      values.Set(1, 0x1p-20);  // subnormal in float16
      values.Set(39, kNaN);
      Scale(values.span(), 0.5);
      EXPECT_EQ(values.Get(0), kInfinity);
      EXPECT_EQ(values.Get(1), 0x1p-21);
      EXPECT_EQ(values.Get(2), 0.5);
      EXPECT_TRUE(std::isnan(values.Get(39)));
    });
  }
}

}  // namespace
}  // namespace coxswain
