#include "hooks/kernels/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "hooks/kernels/every_target.h"

namespace coxswain {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

using Bytes = std::vector<uint8_t>;

int64_t BlocksOf(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

float Scale(const Bytes& bytes, int64_t block, int64_t size) {
  float scale;
  std::memcpy(&scale, bytes.data() + QuantisedBytes(block, size), 4);
  return scale;
}

std::vector<int> Codes(const Bytes& bytes, int64_t block, int64_t size) {
  const uint8_t* first = bytes.data() + QuantisedBytes(block, size) + 4;
  std::vector<int> codes;
  for (int64_t i = 0; i < size; ++i) {
    codes.push_back(static_cast<int8_t>(first[i]));
  }
  return codes;
}

template <typename T>
struct Quantised {
  Bytes bytes;
  std::vector<T> remainder;
};

template <typename T>
Quantised<T> QuantiseOne(const std::vector<T>& x, int64_t size) {
  Quantised<T> out;
  const auto count = static_cast<int64_t>(x.size());
  const int64_t blocks = BlocksOf(count, size);
  out.remainder.resize(x.size());
  out.bytes.resize(static_cast<size_t>(QuantisedBytes(blocks, size)), 0xee);
  const DType type = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
  Quantise<T>({{x.data(), type, nullptr, out.remainder.data(), count}}, size,
              blocks, out.bytes.data());
  return out;
}

// Numbers of very different sizes.
std::vector<float> Values(int64_t count, uint64_t stream) {
  const CounterRandom random(7, stream);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<uint64_t>(i);
    const int exponent = static_cast<int>(random.Bits(n) % 40) - 20;
    values.push_back(
        static_cast<float>(std::ldexp(random.Normal(n), exponent)));
  }
  return values;
}

TEST(QuantiseTest, RoundsToTheNearestEvenCode) {
  const auto out = QuantiseOne<float>(
      {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -126.5f, -127, 0.49f, 1.75f}, 10);
  EXPECT_EQ(Scale(out.bytes, 0, 10), 1.0f);
  EXPECT_EQ(Codes(out.bytes, 0, 10),
            (std::vector<int>{127, 0, 2, 2, 0, -2, -126, -127, 0, 2}));
  EXPECT_EQ(out.remainder, (std::vector<float>{0, 0.5f, -0.5f, 0.5f, -0.5f,
                                               0.5f, -0.5f, 0, 0.49f, -0.25f}));
}

TEST(QuantiseTest, TheLargestOfABlockIsCoded127) {
  for (uint64_t stream = 0; stream < 200; ++stream) {
    const std::vector<float> x = Values(33, stream);
    const auto out = QuantiseOne(x, 33);
    const auto codes = Codes(out.bytes, 0, 33);
    const auto largest = std::max_element(
        x.begin(), x.end(),
        [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    EXPECT_EQ(codes[static_cast<size_t>(largest - x.begin())],
              *largest > 0 ? 127 : -127);
    for (const int code : codes) EXPECT_LE(std::abs(code), 127);
  }
}

template <typename T>
void ExpectSentAndRemainderMakeUpX() {
  for (const int64_t count : {0, 1, 2, 31, 32, 33, 255, 256, 257, 1000}) {
    const std::vector<float> values = Values(count, 3);
    const std::vector<T> x(values.begin(), values.end());
    for (const int64_t size : {1, 32, 100, 256, 4096}) {
      const auto out = QuantiseOne(x, size);
      std::vector<T> sent(x.size());
      Dequantise(out.bytes.data(), size, count, sent.data(),
                 sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32);
      for (size_t i = 0; i < x.size(); ++i) {
        const float scale =
            Scale(out.bytes, static_cast<int64_t>(i) / size, size);
        EXPECT_EQ(x[i] - sent[i], out.remainder[i]);
        EXPECT_LE(std::abs(out.remainder[i]), scale * T{0.50001});
      }
    }
  }
}

TEST(QuantiseTest, SentAndRemainderMakeUpX) {
  ExpectSentAndRemainderMakeUpX<float>();
  ExpectSentAndRemainderMakeUpX<double>();
}

TEST(QuantiseTest, PadsTheLastBlocksWithZeros) {
  const std::vector<float> x = {1, 2, 3, 4, 5};
  Bytes bytes(static_cast<size_t>(QuantisedBytes(3, 4)), 0xee);
  Quantise<float>({{x.data(), DType::kFloat32, nullptr, nullptr, 5}}, 4, 3,
                  bytes.data());
  EXPECT_EQ(Codes(bytes, 1, 4), (std::vector<int>{127, 0, 0, 0}));
  EXPECT_EQ(Codes(bytes, 2, 4), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(Scale(bytes, 2, 4), 0.0f);
}

TEST(QuantiseTest, ZerosAndTheSmallestNumbersAreKeptWhole) {
  for (const float value : {0.0f, -0.0f, kSmallest, 100 * kSmallest,
                            std::numeric_limits<float>::min()}) {
    const auto out = QuantiseOne<float>({value, -value}, 2);
    EXPECT_EQ(Scale(out.bytes, 0, 2), 0.0f);
    EXPECT_EQ(Codes(out.bytes, 0, 2), (std::vector<int>{0, 0}));
    EXPECT_EQ(out.remainder, (std::vector<float>{value, -value}));
  }
  // Just large enough for a scale.
  const float least = 128 * std::numeric_limits<float>::min();
  EXPECT_EQ(Codes(QuantiseOne<float>({least, 0}, 2).bytes, 0, 2),
            (std::vector<int>{127, 0}));
  // What float32 cannot scale, a double keeps.
  const auto tiny = QuantiseOne<double>({1e-300, -1e-50}, 2);
  EXPECT_EQ(tiny.remainder, (std::vector<double>{1e-300, -1e-50}));
}

TEST(QuantiseTest, LargeNumbersGiveNoInfinity) {
  const float largest = std::numeric_limits<float>::max();
  for (const float value : {largest / 2, largest * 0.999f, largest}) {
    const auto out = QuantiseOne<float>({value, -value, 1}, 3);
    const bool finite = QuantisedIsFinite(out.bytes.data(), 3, 1);
    EXPECT_TRUE(finite || value > 0.9999f * largest);
    if (!finite) continue;
    EXPECT_EQ(Codes(out.bytes, 0, 3), (std::vector<int>{127, -127, 0}));
    for (const float rest : out.remainder) EXPECT_TRUE(std::isfinite(rest));
  }
  // A double whose scale no float32 holds.
  const auto huge = QuantiseOne<double>({1e300}, 1);
  EXPECT_FALSE(QuantisedIsFinite(huge.bytes.data(), 1, 1));
}

TEST(QuantiseTest, WhatIsNotFinitePoisonsItsBlockAlone) {
  for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
    for (const size_t where : {0u, 5u, 40u, 99u}) {
      std::vector<float> x = Values(300, 1);
      x[100 + where] = bad;
      const auto out = QuantiseOne(x, 100);
      EXPECT_TRUE(std::isfinite(Scale(out.bytes, 0, 100)));
      EXPECT_TRUE(std::isnan(Scale(out.bytes, 1, 100)));
      EXPECT_TRUE(std::isfinite(Scale(out.bytes, 2, 100)));
      EXPECT_EQ(Codes(out.bytes, 1, 100), std::vector<int>(100, 0));
      EXPECT_FALSE(QuantisedIsFinite(out.bytes.data(), 100, 3));
      EXPECT_TRUE(QuantisedIsFinite(out.bytes.data(), 100, 1));
      std::vector<float> sent(300);
      Dequantise(out.bytes.data(), 100, 300, sent.data(), DType::kFloat32);
      for (size_t i = 0; i < 300; ++i) {
        EXPECT_EQ(std::isnan(sent[i]), i >= 100 && i < 200);
      }
    }
  }
}

// A sum that overflows is as bad as a gradient that did.
TEST(QuantiseTest, SeesAnOverflowOfGradientAndError) {
  const std::vector<float> large(3, std::numeric_limits<float>::max());
  std::vector<float> remainder(3);
  Bytes bytes(static_cast<size_t>(QuantisedBytes(1, 32)));
  Quantise<float>(
      {{large.data(), DType::kFloat32, large.data(), remainder.data(), 3}}, 32,
      1, bytes.data());
  EXPECT_FALSE(QuantisedIsFinite(bytes.data(), 32, 1));
}

TEST(QuantiseTest, RunsThatShareBlocksAreLikeOneRun) {
  const std::vector<float> gradient = Values(1000, 4);
  const std::vector<float> error = Values(1000, 5);
  std::vector<float> sum(1000);
  for (size_t i = 0; i < 1000; ++i) sum[i] = gradient[i] + error[i];
  const auto whole = QuantiseOne(sum, 64);
  std::vector<float> remainder(1000);
  std::vector<QuantiseRun<float>> runs;
  int64_t at = 0;
  for (const int64_t count : {1, 0, 62, 300, 3, 0, 634}) {
    runs.push_back({gradient.data() + at, DType::kFloat32, error.data() + at,
                    remainder.data() + at, count});
    at += count;
  }
  ASSERT_EQ(at, 1000);
  Bytes bytes(whole.bytes.size());
  Quantise(runs, 64, 16, bytes.data());
  EXPECT_EQ(bytes, whole.bytes);
  EXPECT_EQ(remainder, whole.remainder);
  // And without their remainders.
  for (QuantiseRun<float>& run : runs) run.remainder = nullptr;
  Bytes again(whole.bytes.size());
  Quantise(runs, 64, 16, again.data());
  EXPECT_EQ(again, whole.bytes);
}

TEST(QuantiseTest, WidensAndNarrows16BitTypes) {
  const std::vector<float> values = Values(100, 6);
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const bool half = type == DType::kFloat16;
    std::vector<uint16_t> narrow;
    std::vector<float> wide;
    for (const float value : values) {
      narrow.push_back(half ? FloatToFloat16(value) : FloatToBFloat16(value));
      wide.push_back(half ? Float16ToFloat(narrow.back())
                          : BFloat16ToFloat(narrow.back()));
    }
    const auto expected = QuantiseOne(wide, 32);
    Bytes bytes(expected.bytes.size());
    Quantise<float>({{narrow.data(), type, nullptr, nullptr, 100}}, 32, 4,
                    bytes.data());
    EXPECT_EQ(bytes, expected.bytes);
    std::vector<float> sent(100);
    Dequantise(bytes.data(), 32, 100, sent.data(), DType::kFloat32);
    std::vector<uint16_t> out(100);
    Dequantise(bytes.data(), 32, 100, out.data(), type);
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(out[i],
                half ? FloatToFloat16(sent[i]) : FloatToBFloat16(sent[i]));
    }
  }
}

// Quantises the mean of `ranks` arrays and an error in one go and step by step.
void ExpectMeanAndErrorAreAdded(uint64_t ranks, int64_t count) {
  const int64_t size = 35, blocks = BlocksOf(count, size);
  Bytes all;
  std::vector<float> mean(static_cast<size_t>(count), 0);
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    const auto one = QuantiseOne(Values(count, 10 + rank), size);
    std::vector<float> sent(mean.size());
    Dequantise(one.bytes.data(), size, count, sent.data(), DType::kFloat32);
    for (size_t i = 0; i < sent.size(); ++i) mean[i] += sent[i];
    all.insert(all.end(), one.bytes.begin(), one.bytes.end());
  }
  const std::vector<float> error = Values(count, 20);
  for (size_t i = 0; i < mean.size(); ++i) {
    mean[i] = mean[i] / static_cast<float>(ranks) + error[i];
  }
  const auto expected = QuantiseOne(mean, size);
  std::vector<float> remainder(mean.size());
  Bytes bytes(expected.bytes.size());
  const int64_t half = count / 2;
  QuantiseMean<float>(
      all.data(), QuantisedBytes(blocks, size), static_cast<int>(ranks),
      {{nullptr, DType::kFloat32, error.data(), remainder.data(), half},
       {nullptr, DType::kFloat32, error.data() + half, remainder.data() + half,
        count - half}},
      size, blocks, bytes.data());
  EXPECT_EQ(bytes, expected.bytes);
  EXPECT_EQ(remainder, expected.remainder);
}

TEST(QuantiseTest, MeansAddInOrderOfRank) {
  for (const uint64_t ranks : {1, 2, 3, 8}) {
    ExpectMeanAndErrorAreAdded(ranks, 70);
    ExpectMeanAndErrorAreAdded(ranks, 90);
  }
}

// All bytes that the kernels make of pseudo-random input of this size, from
// memory that begins `shift` elements behind a cache line.
Bytes Everything(int64_t count, int64_t shift) {
  std::vector<float> x = Values(count + shift, 8);
  std::vector<float> e = Values(count + shift, 9);
  std::vector<float> remainder(x.size());
  const int64_t blocks = BlocksOf(count, 48);
  Bytes bytes(static_cast<size_t>(QuantisedBytes(blocks, 48)));
  std::rotate(x.begin(), x.end() - shift, x.end());
  std::rotate(e.begin(), e.end() - shift, e.end());
  Quantise<float>({{x.data() + shift, DType::kFloat32, e.data() + shift,
                    remainder.data() + shift, count}},
                  48, blocks, bytes.data());
  Bytes mean(bytes.size());
  std::vector<float> rest(static_cast<size_t>(count));
  QuantiseMean<float>(
      bytes.data(), 0, 3,
      {{nullptr, DType::kFloat32, e.data() + shift, rest.data(), count}}, 48,
      blocks, mean.data());
  std::vector<float> sent(static_cast<size_t>(count));
  Dequantise(bytes.data(), 48, count, sent.data(), DType::kFloat32);
  std::vector<uint16_t> halves(static_cast<size_t>(count));
  Dequantise(bytes.data(), 48, count, halves.data(), DType::kFloat16);
  const auto append = [&bytes](const void* data, size_t size) {
    const auto* first = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), first, first + size);
  };
  append(remainder.data() + shift, static_cast<size_t>(count) * 4);
  append(mean.data(), mean.size());
  append(rest.data(), rest.size() * 4);
  append(sent.data(), sent.size() * 4);
  append(halves.data(), halves.size() * 2);
  return bytes;
}

TEST(QuantiseTest, EveryTargetThreadCountAndAlignmentGivesTheSameBits) {
  // The last two are large enough for two threads, and for stores past the
  // caches.
  for (const int64_t count : {1, 47, 48, 49, 333, 50001, 270001}) {
    const Bytes expected = Everything(count, 0);
    ForEveryTarget(
        [&] { EXPECT_TRUE(SameBits(Everything(count, 0), expected)); });
  }
  // Values() of a longer array begin as those of a shorter one.
  for (const int64_t shift : {1, 3, 7}) {
    EXPECT_EQ(Everything(333, shift), Everything(333, 0)) << shift;
  }
}

}  // namespace
}  // namespace coxswain
