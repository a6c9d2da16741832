#include "hooks/kernels/cuda/elementwise.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/kernels/every_target.h"

// On the CPU, block by block: the programs that a GPU runs, against the CPU's
// own kernels.

namespace coxswain {
namespace {

class AtOnce : public HostStream {
 public:
  void Enqueue(std::function<void()> work) override { work(); }
};

class DeviceElementwiseTest : public testing::Test {
 protected:
  DeviceElementwiseTest() { target_.host = &stream_; }
  ~DeviceElementwiseTest() override { EXPECT_EQ(target_.error, 0); }

  AtOnce stream_;
  LaunchTarget target_;
};

constexpr auto kF32 = ElementType::kFloat32;
constexpr auto kF64 = ElementType::kFloat64;
constexpr auto kF16 = ElementType::kFloat16;
constexpr auto kB16 = ElementType::kBFloat16;

bool IsF16(ElementType type) { return type == kF16; }

template <typename T>
constexpr ElementType kTypeOf = sizeof(T) == 8 ? kF64 : kF32;

// Around vector widths, groups of a thread and tiles of a block.
const std::vector<int64_t>& Counts() {
  static const auto* counts = new std::vector<int64_t>{
      0,  1,  2,   3,   5,    7,    8,    9,    15,   16,   17,
      31, 33, 255, 257, 2047, 2049, 4095, 4097, 8195, 16391};
  return *counts;
}

void NarrowOnCpu(const float* in, ElementType to, uint16_t* out, int64_t count,
                 double factor) {
  const auto by = static_cast<float>(factor);
  IsF16(to) ? ScaleToFloat16(in, out, count, by)
            : ScaleToBFloat16(in, out, count, by);
}
void NarrowOnCpu(const double* in, ElementType to, uint16_t* out, int64_t count,
                 double factor) {
  IsF16(to) ? ScaleToFloat16(in, out, count, factor)
            : ScaleToBFloat16(in, out, count, factor);
}
template <typename T>
void WidenOnCpu(const uint16_t* in, ElementType from, T* out, int64_t count) {
  IsF16(from) ? WidenFloat16(in, out, count) : WidenBFloat16(in, out, count);
}
void DivideNarrowOnCpu(uint16_t* values, ElementType type, int64_t count,
                       int divisor) {
  const auto by = static_cast<float>(divisor);
  IsF16(type) ? DivideFloat16(values, count, by)
              : DivideBFloat16(values, count, by);
}

// NaNs count as equal whatever their payloads: of sums and products, those are
// the hardware's choice.
template <typename T>
bool SameOrNan(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return false;
  }
  return true;
}
bool SameOrNan16(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b,
                 ElementType type) {
  std::vector<float> wide_a(a.size());
  std::vector<float> wide_b(b.size());
  WidenOnCpu(a.data(), type, wide_a.data(), static_cast<int64_t>(a.size()));
  WidenOnCpu(b.data(), type, wide_b.data(), static_cast<int64_t>(b.size()));
  return SameOrNan(wide_a, wide_b);
}

std::vector<uint16_t> EveryPattern() {
  std::vector<uint16_t> values;
  for (uint32_t i = 0; i < 0x10000; ++i) {
    values.push_back(static_cast<uint16_t>(i));
  }
  return values;
}

// Every upper half of a float with lower halves around the ties of both
// formats: subnormals, infinities and NaNs among them.
std::vector<float> EveryUpperHalf() {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0u, 0x1u, 0xfffu, 0x1000u, 0x1001u, 0x3000u,
                                 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(FloatFromBits(upper << 16 | lower));
    }
  }
  return values;
}

template <typename T>
std::vector<T> RandomBits(int64_t count, uint64_t stream) {
  const CounterRandom random(7, stream);
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = random.Bits(i);
    std::memcpy(&values[i], &bits, sizeof(T));
  }
  return values;
}

// Doubles that float holds, those between two of its numbers, and ties.
std::vector<double> TrickyDoubles() {
  std::vector<double> values = RandomBits<double>(200000, 3);
  for (const float near : EveryUpperHalf()) {
    const double value = near;
    values.push_back(value);
    values.push_back(std::nextafter(value, 1e300));
    values.push_back(std::nextafter(value, -1e300));
  }
  return values;
}

template <typename T>
void ExpectNarrowed(LaunchTarget* target, const std::vector<T>& values,
                    int divisor, int64_t in_offset, int64_t out_offset) {
  const auto count = static_cast<int64_t>(values.size());
  Guarded<T> in(count, in_offset, T{7});
  in.Fill(values);
  for (const ElementType to : {kF16, kB16}) {
    std::vector<uint16_t> expected(values.size());
    NarrowOnCpu(values.data(), to, expected.data(), count, 1.0 / divisor);
    Guarded<uint16_t> out(count, out_offset, 0x5555);
    EnqueueNarrow(target, kTypeOf<T>, in.data(), to, out.data(), count,
                  1.0 / divisor);
    ASSERT_TRUE(SameOrNan16(out.Values(), expected, to))
        << count << " by " << divisor << " at " << in_offset << " to "
        << out_offset;
    ASSERT_TRUE(out.IsIntact());
  }
}

TEST_F(DeviceElementwiseTest, NarrowsEveryKindOfFloat) {
  for (const int divisor : {1, 3, 8}) {
    ExpectNarrowed(&target_, EveryUpperHalf(), divisor, 0, 0);
  }
  ExpectNarrowed(&target_, RandomBits<float>(1 << 20, 1), 6, 1, 3);
}

TEST_F(DeviceElementwiseTest, NarrowsDoublesWithoutRoundingTwice) {
  for (const int divisor : {1, 3}) {
    ExpectNarrowed(&target_, TrickyDoubles(), divisor, 1, 0);
  }
}

TEST_F(DeviceElementwiseTest, NarrowsAtAnySizeAndAlignment) {
  for (const int64_t count : Counts()) {
    const auto floats = RandomBits<float>(count, 10);
    const auto doubles = RandomBits<double>(count, 11);
    for (const int64_t offset : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15}) {
      ExpectNarrowed(&target_, floats, 4, offset, offset);
      ExpectNarrowed(&target_, floats, 4, 0, offset);
      ExpectNarrowed(&target_, doubles, 5, offset, 15 - offset);
    }
  }
}

template <typename T>
void ExpectWidened(LaunchTarget* target, const std::vector<uint16_t>& values,
                   int64_t in_offset, int64_t out_offset) {
  const auto count = static_cast<int64_t>(values.size());
  Guarded<uint16_t> in(count, in_offset, 7);
  in.Fill(values);
  for (const ElementType from : {kF16, kB16}) {
    std::vector<T> expected(values.size());
    WidenOnCpu(values.data(), from, expected.data(), count);
    Guarded<T> out(count, out_offset, T{5});
    EnqueueWiden(target, from, in.data(), kTypeOf<T>, out.data(), count);
    ASSERT_TRUE(SameOrNan(out.Values(), expected))
        << count << " at " << in_offset << " to " << out_offset;
    ASSERT_TRUE(out.IsIntact());
  }
}

TEST_F(DeviceElementwiseTest, WidensEveryPatternAtAnySizeAndAlignment) {
  ExpectWidened<float>(&target_, EveryPattern(), 0, 0);
  ExpectWidened<double>(&target_, EveryPattern(), 0, 0);
  for (const int64_t count : Counts()) {
    const auto values = RandomBits<uint16_t>(count, 20);
    for (const int64_t offset : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15}) {
      ExpectWidened<float>(&target_, values, offset, offset);
      ExpectWidened<float>(&target_, values, offset, 0);
      ExpectWidened<double>(&target_, values, 15 - offset, offset);
    }
  }
}

TEST_F(DeviceElementwiseTest, DividesSixteenBitsInFloat) {
  for (const ElementType type : {kF16, kB16}) {
    for (const int divisor : {1, 2, 3, 7, 48}) {
      std::vector<uint16_t> expected = EveryPattern();
      std::vector<uint16_t> values = expected;
      const auto count = static_cast<int64_t>(values.size());
      DivideNarrowOnCpu(expected.data(), type, count, divisor);
      EnqueueDivide(&target_, type, values.data(), count, divisor);
      EXPECT_TRUE(SameOrNan16(values, expected, type)) << divisor;
    }
  }
}

template <typename T>
void ExpectDividedAndAdded(LaunchTarget* target, int64_t count,
                           int64_t offset) {
  const auto values = RandomBits<T>(count, 30);
  const auto other = RandomBits<T>(count, 31);
  std::vector<T> expected = values;
  Divide(expected.data(), count, T{3});
  Guarded<T> divided(count, offset, T{7});
  divided.Fill(values);
  EnqueueDivide(target, kTypeOf<T>, divided.data(), count, 3);
  ASSERT_TRUE(SameOrNan(divided.Values(), expected)) << count;
  ASSERT_TRUE(divided.IsIntact());

  expected = values;
  Add(expected.data(), other.data(), count);
  Guarded<T> sum(count, offset, T{7});
  Guarded<T> from(count, 3 * offset % 16, T{7});
  sum.Fill(values);
  from.Fill(other);
  EnqueueAdd(target, kTypeOf<T>, sum.data(), from.data(), count);
  ASSERT_TRUE(SameOrNan(sum.Values(), expected)) << count;
  ASSERT_TRUE(sum.IsIntact());
}

TEST_F(DeviceElementwiseTest, DividesAndAddsAtAnySizeAndAlignment) {
  for (const int64_t count : Counts()) {
    for (const int64_t offset : {0, 1, 2, 3, 5, 15}) {
      ExpectDividedAndAdded<float>(&target_, count, offset);
      ExpectDividedAndAdded<double>(&target_, count, offset);
    }
  }
}

template <typename T>
void ExpectCopiedAndFilled(LaunchTarget* target, ElementType type,
                           int64_t count, int64_t offset) {
  const auto values = RandomBits<T>(count, 40);
  Guarded<T> in(count, offset, T{7});
  in.Fill(values);
  Guarded<T> out(count, 15 - offset, T{5});
  EnqueueCopy(target, type, in.data(), out.data(), count);
  ASSERT_TRUE(SameBits(out.Values(), values));
  ASSERT_TRUE(out.IsIntact());
  EnqueueFillNan(target, type, out.data(), count);
  ASSERT_TRUE(out.IsIntact());
  for (const T bits : out.Values()) {
    double value = 0;
    if (type == kF64) std::memcpy(&value, &bits, sizeof(T));
    if (type == kF32) value = FloatFromBits(static_cast<uint32_t>(bits));
    if (type == kF16) value = Float16ToFloat(static_cast<uint16_t>(bits));
    if (type == kB16) value = BFloat16ToFloat(static_cast<uint16_t>(bits));
    ASSERT_TRUE(std::isnan(value));
  }
}

TEST_F(DeviceElementwiseTest, CopiesAndFillsAtAnySizeAndAlignment) {
  for (const int64_t count : Counts()) {
    for (const int64_t offset : {0, 1, 2, 3, 7, 8, 15}) {
      ExpectCopiedAndFilled<uint16_t>(&target_, kF16, count, offset);
      ExpectCopiedAndFilled<uint16_t>(&target_, kB16, count, offset);
      ExpectCopiedAndFilled<uint32_t>(&target_, kF32, count, offset);
      ExpectCopiedAndFilled<uint64_t>(&target_, kF64, count, offset);
    }
  }
}

// Some finite, some not; returns how many are not.
int64_t Spoil(std::vector<float>* values) {
  int64_t spoiled = 0;
  for (size_t i = 0; i < values->size(); i += 1 + i % 37) {
    (*values)[i] = i % 2 == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
    ++spoiled;
  }
  return spoiled;
}

template <typename T>
std::vector<int64_t> Count(LaunchTarget* target, ElementType type,
                           const std::vector<T>& values,
                           const std::vector<ElementRange>& ranges) {
  const auto count = static_cast<int64_t>(ranges.size());
  std::vector<int64_t> partials(
      static_cast<size_t>(CountNonFinitePartials(count)), -1);
  std::vector<int64_t> counts(ranges.size() + 1, -1);
  EnqueueCountNonFinite(target, type, values.data(), ranges.data(), count,
                        partials.data(), counts.data());
  EXPECT_EQ(counts.back(), -1);
  counts.pop_back();
  return counts;
}

TEST_F(DeviceElementwiseTest, CountsWhatIsNotFiniteInEachRange) {
  for (const int64_t size : Counts()) {
    std::vector<float> values(static_cast<size_t>(size), 1e38f);
    const int64_t spoiled = Spoil(&values);
    const std::vector<double> wide(values.begin(), values.end());
    std::vector<uint16_t> f16;
    std::vector<uint16_t> b16;
    for (const float value : values) {
      f16.push_back(FloatToFloat16(value == 1e38f ? -65504.0f : value));
      b16.push_back(FloatToBFloat16(value));
    }
    // The whole, nothing, and two parts.
    const std::vector<ElementRange> ranges = {
        {0, size}, {size, 0}, {0, size / 3}, {size / 3, size - size / 3}};
    const auto counts = Count(&target_, kF32, values, ranges);
    EXPECT_EQ(counts[0], spoiled) << size;
    EXPECT_EQ(counts[1], 0);
    EXPECT_EQ(counts[2] + counts[3], spoiled);
    EXPECT_EQ(counts[2], CountNonFinite(values.data(), size / 3));
    EXPECT_EQ(Count(&target_, kF64, wide, ranges), counts);
    EXPECT_EQ(Count(&target_, kF16, f16, ranges), counts);
    EXPECT_EQ(Count(&target_, kB16, b16, ranges), counts);
  }
}

TEST_F(DeviceElementwiseTest, CountsInManyRanges) {
  std::vector<float> values(30000, 1);
  Spoil(&values);
  std::vector<ElementRange> ranges;
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 5000; ++i) {
    ranges.push_back({i * 5, i % 9});
    expected.push_back(CountNonFinite(values.data() + i * 5, i % 9));
  }
  EXPECT_EQ(Count(&target_, kF32, values, ranges), expected);
}

// One block of an array of 2^40 elements, which is not there but for what that
// block touches: its indices do not fit 32 bits.
TEST_F(DeviceElementwiseTest, IndicesGoBeyond32Bits) {
  using Body = NarrowBody<float, BFloat16Element>;
  using Program = ElementwiseProgram<Body>;
  constexpr int64_t kTile = Program::kGroupsOfBlock * Body::kGroup;
  constexpr int64_t kCount = int64_t{1} << 40;
  const auto values = RandomBits<float>(kTile, 50);
  Guarded<float> in(kTile, 0, 7);
  in.Fill(values);
  Guarded<uint16_t> out(kTile, 0, 0x5555);
  std::vector<uint16_t> expected(values.size());
  NarrowOnCpu(values.data(), kB16, expected.data(), kTile, 1);

  BlockPlace at;
  at.block = (int64_t{3} << 31) / kTile;
  at.blocks = kCount / kTile;
  const auto before = static_cast<uintptr_t>(at.block * kTile);
  const Program program{
      Body{reinterpret_cast<const float*>(
               reinterpret_cast<uintptr_t>(in.data()) - before * sizeof(float)),
           reinterpret_cast<uint16_t*>(reinterpret_cast<uintptr_t>(out.data()) -
                                       before * sizeof(uint16_t)),
           1.0f},
      MakeStretch(kCount, Body::kGroup, 0, 2, 0, 4, 0)};
  Program::Thread thread;
  Program::Shared shared;
  for (at.thread = 0; at.thread < Program::kThreads; ++at.thread) {
    program.Run(0, at, &thread, &shared);
  }
  EXPECT_TRUE(SameOrNan16(out.Values(), expected, kB16));
  EXPECT_TRUE(out.IsIntact());
}

// The same when few blocks go round: the second round of block 1 of 3.
TEST_F(DeviceElementwiseTest, BlocksGoRound) {
  using Body = CopyBody<uint32_t>;
  using Program = ElementwiseProgram<Body>;
  constexpr int64_t kTile = Program::kGroupsOfBlock * Body::kGroup;
  const auto values = RandomBits<uint32_t>(5 * kTile + 3, 51);
  const auto count = static_cast<int64_t>(values.size());
  Guarded<uint32_t> in(count, 0, 7);
  in.Fill(values);
  Guarded<uint32_t> out(count, 1, 5);
  const Program program{
      Body{in.data(), out.data()},
      MakeStretch(count, Body::kGroup, reinterpret_cast<uintptr_t>(out.data()),
                  4, reinterpret_cast<uintptr_t>(in.data()), 4, 0)};
  RunOnHost(program, 3);
  EXPECT_TRUE(SameBits(out.Values(), values));
  EXPECT_TRUE(out.IsIntact());
}

TEST_F(DeviceElementwiseTest, OneLaunchEachAndNoneForNothing) {
  std::vector<float> values(100, 1);
  std::vector<uint16_t> out(100);
  EnqueueNarrow(&target_, kF32, values.data(), kF16, out.data(), 0);
  EXPECT_EQ(target_.launches, 0);
  EnqueueNarrow(&target_, kF32, values.data(), kF16, out.data(), 100);
  EnqueueWiden(&target_, kF16, out.data(), kF32, values.data(), 100);
  EnqueueDivide(&target_, kF32, values.data(), 100, 2);
  EXPECT_EQ(target_.launches, 3);
}

TEST(DeviceElementwiseErrorTest, OtherTypesAreRefused) {
  AtOnce stream;
  LaunchTarget target;
  target.host = &stream;
  std::vector<int32_t> values(4, 1);
  EnqueueDivide(&target, ElementType::kInt32, values.data(), 4, 2);
  EXPECT_EQ(target.launches, 0);
  EXPECT_NE(target.error, 0);
  EXPECT_EQ(values[0], 1);
}

}  // namespace
}  // namespace coxswain
