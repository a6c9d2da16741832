#include "hooks/kernels/cuda/quantise.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "hooks/kernels/cuda/quantise_programs.h"
#include "hooks/kernels/every_target.h"
#include "hooks/kernels/quantise.h"

namespace coxswain {
namespace {

using Bytes = std::vector<uint8_t>;

// The CPU runs what is launched at once, in another order each time.
class OnHost : public HostStream {
 public:
  OnHost() { target.host = this; }
  void Enqueue(std::function<void()> work) override { work(); }
  LaunchTarget target;
};

int64_t BlocksOf(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// Equal bits, or NaNs both.
template <typename T>
bool SameValues(const std::vector<T>& a, const std::vector<T>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const bool nan = std::isnan(a[i]) && std::isnan(b[i]);
    if (!nan && std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return false;
  }
  return a.size() == b.size();
}

template <typename Stored>
Stored Store(double value, ElementType type) {
  if constexpr (sizeof(Stored) == 2) {
    const auto narrow = static_cast<float>(value);
    return type == ElementType::kFloat16 ? FloatToFloat16(narrow)
                                         : FloatToBFloat16(narrow);
  }
  return static_cast<Stored>(value);
}

// Numbers of very different sizes; about one in `special_every` is a zero, a
// subnormal, the largest one, an infinity or a NaN.
template <typename Stored>
std::vector<Stored> Values(int64_t count, uint64_t stream, ElementType type,
                           uint64_t special_every) {
  const double kSpecial[] = {0.0,    -0.0,     1e-42,     -3e-39,
                             3.4e38, INFINITY, -INFINITY, NAN};
  const CounterRandom random(11, stream);
  std::vector<Stored> values;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = random.Bits(static_cast<uint64_t>(i) + 1000000);
    const int exponent = static_cast<int>(bits % 24) - 12;
    double value =
        std::ldexp(random.Normal(static_cast<uint64_t>(i)), exponent);
    if (special_every != 0 && (bits >> 8) % special_every == 0) {
      value = kSpecial[(bits >> 40) % 8];
    }
    values.push_back(Store<Stored>(value, type));
  }
  return values;
}

struct Case {
  std::vector<int64_t> counts;  // of the runs
  int64_t size = 256;           // of a block
  int64_t more_blocks = 0;      // behind those that are needed
  int64_t shift = 0;            // of memory, in elements
  bool apart = false;           // a gap between runs: they cannot be joined
  uint64_t special_every = 0;
  bool error = true;
  bool remainder = true;
  bool in_place = false;  // the remainder takes the error's place

  int64_t count() const {
    int64_t sum = 0;
    for (const int64_t one : counts) sum += one;
    return sum;
  }
  int64_t memory() const {
    return count() + (apart ? static_cast<int64_t>(counts.size()) : 0);
  }
  int64_t blocks() const { return BlocksOf(count(), size) + more_blocks; }
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t size :
       {1, 2, 3, 4, 16, 17, 32, 48, 100, 256, 300, 1024, 4095, 4096}) {
    for (const int64_t count : {1, 31, 4097, 9000}) {
      Case one;
      one.size = size;
      one.counts = {count};
      one.more_blocks = count % 3;
      one.shift = count % 5;
      one.special_every = count == 9000 ? 2500 : 0;
      cases.push_back(one);
      one.counts = {count / 3, 0, 1, count - count / 3 - 1 + (count < 2), 0};
      one.apart = count % 2 == 1;
      one.shift = 0;
      one.in_place = true;
      cases.push_back(one);
    }
  }
  Case none;
  none.more_blocks = 2;
  cases.push_back(none);
  none.counts = {0, 0};
  cases.push_back(none);
  Case plain;
  plain.counts = {5000};
  plain.error = false;
  cases.push_back(plain);
  plain.remainder = false;
  cases.push_back(plain);
  plain.error = true;
  cases.push_back(plain);
  // Many runs, smaller than a thread's elements.
  Case many;
  many.apart = true;
  for (int64_t i = 0; i < 900; ++i) many.counts.push_back(i % 7);
  for (const int64_t size : {32, 256, 4096}) {
    many.size = size;
    cases.push_back(many);
  }
  return cases;
}

std::string Name(const Case& one) {
  return "size " + std::to_string(one.size) + ", " +
         std::to_string(one.count()) + " elements in " +
         std::to_string(one.counts.size()) + " runs" +
         (one.apart ? " apart" : "") + ", shift " + std::to_string(one.shift);
}

// Runs over these arrays. Without gradients, for the mean.
template <typename T, typename Stored>
std::vector<QuantiseRun<T>> RunsOver(const Case& one, const Stored* gradient,
                                     ElementType type, const T* error,
                                     T* remainder) {
  std::vector<QuantiseRun<T>> runs;
  int64_t at = 0;
  for (const int64_t count : one.counts) {
    QuantiseRun<T> run;
    run.gradient = gradient == nullptr ? nullptr : gradient + at;
    run.type = type;
    run.error = one.error ? error + at : nullptr;
    run.remainder = one.remainder ? remainder + at : nullptr;
    run.count = count;
    runs.push_back(run);
    at += count + (one.apart ? 1 : 0);
  }
  return runs;
}

// Quantises by both; `oracle` and `device` take runs and where to write.
template <typename T, typename Stored, typename Oracle, typename OnDevice>
void ExpectSame(const Case& one, ElementType type, const Stored* gradient,
                const Oracle& oracle, const OnDevice& device) {
  SCOPED_TRACE(Name(one));
  const auto bytes = QuantisedBytes(one.blocks(), one.size);
  const auto errors = Values<T>(one.memory(), 2, type, 0);
  const T poison = T{-77};
  Guarded<T> error(one.memory(), one.shift, poison);
  error.Fill(errors);
  std::vector<T> expected_rest(errors.size(), poison);
  Bytes expected(static_cast<size_t>(bytes), 0xee);
  oracle(RunsOver<T>(one, gradient, type, error.data(), expected_rest.data()),
         expected.data());

  Guarded<T> rest(one.memory(), one.shift, poison);
  if (one.in_place) rest.Fill(errors);
  // What lies between runs stays as it is.
  int64_t gap = -1;
  for (const int64_t count : one.counts) {
    gap += count + 1;
    if (one.in_place && one.apart) {
      expected_rest[static_cast<size_t>(gap)] = rest.data()[gap];
    }
  }
  Guarded<uint8_t> out(bytes, one.shift, 0xaa);
  const auto runs =
      RunsOver<T>(one, gradient, type,
                  one.in_place ? rest.data() : error.data(), rest.data());
  const std::vector<QuantiseEntry> table = QuantiseTable(runs);
  OnHost host;
  host.target.launches = one.size % 4;  // any order
  device(&host.target,
         QuantiseRuns{table.data(), static_cast<int64_t>(table.size()) - 1},
         out.data());
  EXPECT_EQ(host.target.launches, one.size % 4 + (one.blocks() > 0 ? 1 : 0));
  EXPECT_EQ(out.Values(), expected);
  EXPECT_TRUE(SameValues(rest.Values(), expected_rest));
  EXPECT_TRUE(out.IsIntact());
  EXPECT_TRUE(rest.IsIntact());
}

template <typename T, typename Stored>
void ExpectQuantises(ElementType type) {
  for (const Case& one : Cases()) {
    Guarded<Stored> gradient(one.memory(), one.shift, Stored{1});
    gradient.Fill(Values<Stored>(one.memory(), 1, type, one.special_every));
    int32_t flag = 7;
    ExpectSame<T, Stored>(
        one, type, gradient.data(),
        [&one](const std::vector<QuantiseRun<T>>& runs, uint8_t* out) {
          Quantise<T>(runs, one.size, one.blocks(), out);
        },
        [&](LaunchTarget* target, QuantiseRuns runs, uint8_t* out) {
          EnqueueQuantise<T>(target, runs, type, one.size, one.blocks(), out,
                             &flag);
        });
    EXPECT_EQ(flag, one.blocks() > 0 ? 0 : 7);
  }
}

TEST(CudaQuantiseTest, QuantisesAsTheCpuDoes) {
  ExpectQuantises<float, float>(ElementType::kFloat32);
  ExpectQuantises<double, double>(ElementType::kFloat64);
}

TEST(CudaQuantiseTest, QuantisesNarrowGradientsAsTheCpuDoes) {
  ExpectQuantises<float, uint16_t>(ElementType::kFloat16);
  ExpectQuantises<float, uint16_t>(ElementType::kBFloat16);
}

// `ranks` arrays, one behind the other.
template <typename T>
Bytes QuantisedArrays(const Case& one, int ranks, ElementType type) {
  const auto bytes =
      static_cast<size_t>(QuantisedBytes(one.blocks(), one.size));
  Bytes all(bytes * static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto values = Values<T>(one.count(), 20 + static_cast<uint64_t>(rank),
                                  type, one.special_every);
    Quantise<T>({{values.data(), type, nullptr, nullptr, one.count()}},
                one.size, one.blocks(),
                all.data() + static_cast<size_t>(rank) * bytes);
  }
  return all;
}

template <typename T>
void ExpectMeans(ElementType type) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const Case& one : Cases()) {
      if (ranks != 3 && one.size > 1000) continue;
      const Bytes in = QuantisedArrays<T>(one, ranks, type);
      const int64_t stride = QuantisedBytes(one.blocks(), one.size);
      Guarded<uint8_t> shifted(static_cast<int64_t>(in.size()), one.shift, 0);
      shifted.Fill(in);
      ExpectSame<T, T>(
          one, type, nullptr,
          [&](const std::vector<QuantiseRun<T>>& runs, uint8_t* out) {
            QuantiseMean<T>(in.data(), stride, ranks, runs, one.size,
                            one.blocks(), out);
          },
          [&](LaunchTarget* target, QuantiseRuns runs, uint8_t* out) {
            EnqueueQuantiseMean<T>(target, shifted.data(), stride, ranks, runs,
                                   one.size, one.blocks(), out);
          });
    }
  }
}

TEST(CudaQuantiseTest, MeansAreThoseOfTheCpu) {
  ExpectMeans<float>(ElementType::kFloat32);
  ExpectMeans<double>(ElementType::kFloat64);
}

template <typename Stored>
bool SameStored(const std::vector<Stored>& a, const std::vector<Stored>& b,
                ElementType type) {
  if constexpr (sizeof(Stored) != 2) {
    return SameValues(a, b);
  } else {
    std::vector<float> wide_a, wide_b;
    const bool half = type == ElementType::kFloat16;
    for (const uint16_t v : a)
      wide_a.push_back(half ? Float16ToFloat(v) : BFloat16ToFloat(v));
    for (const uint16_t v : b)
      wide_b.push_back(half ? Float16ToFloat(v) : BFloat16ToFloat(v));
    return SameValues(wide_a, wide_b);
  }
}

template <typename T, typename Stored>
void ExpectDequantises(ElementType type) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(Name(one));
    const Bytes in = QuantisedArrays<T>(
        one, 1, sizeof(T) == 8 ? ElementType::kFloat64 : ElementType::kFloat32);
    std::vector<Stored> expected(static_cast<size_t>(one.count()), Stored{5});
    Dequantise(in.data(), one.size, one.count(), expected.data(), type);
    for (const int32_t skip : {0, 1}) {
      Guarded<Stored> out(one.count(), one.shift, Stored{9});
      OnHost host;
      EnqueueDequantise(&host.target, in.data(), one.size, one.count(),
                        out.data(), type, &skip);
      EXPECT_TRUE(out.IsIntact());
      const std::vector<Stored> untouched(expected.size(), Stored{9});
      EXPECT_TRUE(
          SameStored(out.Values(), skip == 0 ? expected : untouched, type));
    }
    int32_t found = 0;
    OnHost host;
    EnqueueFindBadScale(&host.target, in.data(), one.size, one.blocks(),
                        &found);
    EXPECT_EQ(found == 0, QuantisedIsFinite(in.data(), one.size, one.blocks()));
  }
}

TEST(CudaQuantiseTest, DequantisesAsTheCpuDoes) {
  ExpectDequantises<float, float>(ElementType::kFloat32);
  ExpectDequantises<double, double>(ElementType::kFloat64);
  ExpectDequantises<float, uint16_t>(ElementType::kFloat16);
  ExpectDequantises<float, uint16_t>(ElementType::kBFloat16);
}

// The rules at the ends: scales that are subnormal or overflow.
TEST(CudaQuantiseTest, ScalesAtTheEndsAreThoseOfTheCpu) {
  const float least = std::numeric_limits<float>::min();
  const float most = std::numeric_limits<float>::max();
  for (const float value :
       {0.0f, -0.0f, 1e-45f, least, 126 * least, 127 * least, 128 * least,
        most / 2, most * 0.999f, most, INFINITY, -INFINITY, NAN}) {
    SCOPED_TRACE(value);
    const std::vector<float> x = {value, -value, 1e-45f, 0};
    std::vector<float> expected_rest(4), rest(4, -1);
    Bytes expected(8), bytes(8, 0xaa);
    Quantise<float>(
        {{x.data(), DType::kFloat32, nullptr, expected_rest.data(), 4}}, 4, 1,
        expected.data());
    const auto table = QuantiseTable<float>(
        {{x.data(), DType::kFloat32, nullptr, rest.data(), 4}});
    OnHost host;
    EnqueueQuantise<float>(&host.target, {table.data(), 1},
                           ElementType::kFloat32, 4, 1, bytes.data());
    EXPECT_EQ(bytes, expected);
    EXPECT_TRUE(SameValues(rest, expected_rest));
  }
}

TEST(CudaQuantiseTest, JoinsWhatFollowsEachOther) {
  std::vector<float> g(100), e(100), r(100);
  const auto run = [&](int64_t g_at, int64_t e_at, int64_t count) {
    return QuantiseRun<float>{g.data() + g_at, DType::kFloat32, e.data() + e_at,
                              r.data() + e_at, count};
  };
  auto table = QuantiseTable<float>(
      {run(0, 0, 10), run(3, 3, 0), run(10, 10, 5), run(15, 20, 5)});
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(table[1].first, 15);
  EXPECT_EQ(table[1].gradient, g.data() + 15);
  EXPECT_EQ(table[1].error, e.data() + 20);
  EXPECT_EQ(table[2].first, 20);
  // One without an error is not like one with.
  auto bare = run(10, 10, 5);
  bare.error = nullptr;
  EXPECT_EQ(QuantiseTable<float>({run(0, 0, 10), bare}).size(), 3u);
  EXPECT_EQ(QuantiseTable<float>({}).size(), 1u);
}

// A block whose elements, and bytes, lie behind the 2^33rd.
TEST(CudaQuantiseTest, IndicesAreOf64Bits) {
  constexpr int64_t kSize = 256;
  constexpr int64_t kFar = int64_t{1} << 33;
  const auto x = Values<float>(kSize, 1, ElementType::kFloat32, 0);
  std::vector<float> rest(kSize), expected_rest(kSize), sent(kSize),
      expected_sent(kSize);
  Bytes expected(kSize + 4), bytes(kSize + 4);
  Quantise<float>(
      {{x.data(), DType::kFloat32, nullptr, expected_rest.data(), kSize}},
      kSize, 1, expected.data());
  Dequantise(expected.data(), kSize, kSize, expected_sent.data(),
             DType::kFloat32);

  const QuantiseEntry table[] = {{nullptr, nullptr, nullptr, 0},
                                 {x.data(), nullptr, rest.data(), kFar},
                                 {nullptr, nullptr, nullptr, kFar + kSize}};
  const QuantiseGrid grid = QuantiseGrid::Of(kSize, kFar / kSize + 1);
  const auto before = [&](void* memory, int64_t distance) {
    return reinterpret_cast<uintptr_t>(memory) -
           static_cast<uintptr_t>(distance);
  };
  auto* far = reinterpret_cast<uint8_t*>(
      before(bytes.data(), grid.BytesBefore(kFar / kSize)));
  using Program = QuantiseProgram<GradientSource<OwnElement<float>>>;
  const Program program{{}, table, 2, grid, far, nullptr};
  const DequantiseProgram<OwnElement<float>> back{
      far, grid, kFar + kSize,
      reinterpret_cast<float*>(before(sent.data(), 4 * kFar)), nullptr};
  std::vector<Program::Thread> threads(Program::kThreads);
  Program::Shared shared;
  BlockPlace at;
  at.block = grid.launched() - 1;
  at.blocks = grid.launched();
  for (int phase = 0; phase < program.phases(); ++phase) {
    for (at.thread = 0; at.thread < Program::kThreads; ++at.thread) {
      program.Run(phase, at, &threads[static_cast<size_t>(at.thread)], &shared);
    }
  }
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(rest, expected_rest);
  for (at.thread = 0; at.thread < Program::kThreads; ++at.thread) {
    back.Run(0, at, nullptr, nullptr);
  }
  EXPECT_EQ(sent, expected_sent);
}

TEST(CudaQuantiseTest, FoldsAverages) {
  const auto local = Values<float>(700, 1, ElementType::kFloat32, 0);
  const auto average = Values<float>(400, 2, ElementType::kFloat32, 0);
  std::vector<float> a(300, -1), b(400, -1);
  const std::vector<FoldEntry<float>> table = {
      {local.data(), average.data(), a.data(), 100, 250, 0},
      {nullptr, average.data() + 150, b.data(), 0, 250, 300},
      {nullptr, nullptr, nullptr, 0, 0, 700}};
  OnHost host;
  EnqueueFold<float>(&host.target, table.data(), 2, 700, 3);
  for (size_t i = 0; i < 300; ++i) {
    const bool inside = i >= 100 && i < 250;
    EXPECT_EQ(a[i], inside ? local[i] + 3 * average[i - 100] : local[i]);
  }
  for (size_t i = 0; i < 400; ++i) {
    EXPECT_EQ(b[i], i < 250 ? 3 * average[i + 150] : 0.0f);
  }
}

template <typename Stored>
void ExpectFinds(ElementType type) {
  const std::vector<int64_t> counts = {3, 1000, 1, 257};
  for (const int where : {-1, 0, 2, 3, 5, 700, 1002, 1003, 1260}) {
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      std::vector<Stored> values(1261, Store<Stored>(-65504, type));
      if (where >= 0) {
        values[static_cast<size_t>(where)] = Store<Stored>(bad, type);
        values[1260] = Store<Stored>(bad, type);
      }
      std::vector<QuantiseEntry> table;
      int64_t at = 0;
      int32_t expected = 0;
      for (const int64_t count : counts) {
        table.push_back({values.data() + at, nullptr, nullptr, at});
        at += count;
        if (where >= 0 && where >= table.back().first) ++expected;
      }
      table.push_back({nullptr, nullptr, nullptr, at});
      std::vector<int32_t> flags(4, -1), by_rank(300, -1);
      OnHost host;
      EnqueueFindNonFinite(&host.target, {table.data(), 4}, type, 290, 300,
                           flags.data(), by_rank.data());
      for (size_t r = 0; r < 300; ++r) {
        EXPECT_EQ(by_rank[r], r == 290 ? expected : 0) << where;
      }
    }
  }
}

TEST(CudaQuantiseTest, FindsTheFirstGradientThatIsNotFinite) {
  ExpectFinds<float>(ElementType::kFloat32);
  ExpectFinds<double>(ElementType::kFloat64);
  ExpectFinds<uint16_t>(ElementType::kFloat16);
  ExpectFinds<uint16_t>(ElementType::kBFloat16);
}

}  // namespace
}  // namespace coxswain
