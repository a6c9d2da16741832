#include "hooks/kernels/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/float16.h"
#include "gtest/gtest.h"
#include "hooks/kernels/every_target.h"
#include "hooks/kernels/parallel.h"

namespace coxswain {
namespace {

// The arithmetic as it is documented in low_rank_job.h and vectors-inl.h, one
// number at a time.
template <typename T>
struct Oracle {
  static constexpr int64_t kLanes = 64 / sizeof(T);

  // (0 + 1) + (2 + 3)
  static T Tree(const std::vector<T>& terms) {
    if (terms.size() == 1) return terms[0];
    T sum = terms[0] + terms[1];
    if (terms.size() == 3) sum += terms[2];
    if (terms.size() == 4) sum += terms[2] + terms[3];
    return sum;
  }

  static std::vector<T> Project(const std::vector<T>& x,
                                const std::vector<T>& q, int64_t n, int64_t m,
                                int64_t r) {
    std::vector<T> p;
    for (int64_t k = 0; k < r; ++k) {
      for (int64_t i = 0; i < n; ++i) {
        T lanes[kLanes] = {};
        for (int64_t j = 0; j < m; ++j) {
          lanes[j % kLanes] += At(x, i * m + j) * At(q, k * m + j);
        }
        for (int64_t width = kLanes / 2; width > 0; width /= 2) {
          for (int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
        }
        p.push_back(lanes[0]);
      }
    }
    return p;
  }

  static std::vector<T> ProjectTransposed(const std::vector<T>& x,
                                          const std::vector<T>& p, int64_t n,
                                          int64_t m, int64_t r) {
    std::vector<T> q;
    for (int64_t k = 0; k < r; ++k) {
      for (int64_t j = 0; j < m; ++j) {
        const auto term = [&](int64_t i) {
          return At(x, i * m + j) * At(p, k * n + i);
        };
        T total = 0;
        for (int64_t panel = 0; panel < n; panel += 128) {
          const int64_t end = std::min(n, panel + 128);
          T sum = 0;
          int64_t i = panel;
          for (; i + 4 <= end; i += 4) {
            sum += Tree({term(i), term(i + 1), term(i + 2), term(i + 3)});
          }
          for (; i < end; ++i) sum += term(i);
          total += sum;
        }
        q.push_back(total);
      }
    }
    return q;
  }

  // start + sign * product, or only the product.
  static T Combine(bool has_start, T start, T sign, const std::vector<T>& p,
                   const std::vector<T>& q, int64_t r, int64_t n, int64_t m,
                   int64_t i, int64_t j) {
    T value = start;
    for (int64_t k = 0; k < r; k += 4) {
      std::vector<T> terms;
      for (int64_t c = k; c < std::min(r, k + 4); ++c) {
        terms.push_back(At(p, c * n + i) * At(q, c * m + j));
      }
      const T product = Tree(terms);
      if (!has_start && k == 0) {
        value = product;
      } else {
        value = sign < 0 ? value - product : value + product;
      }
    }
    return value;
  }

  static T At(const std::vector<T>& v, int64_t i) {
    return v[static_cast<size_t>(i)];
  }
};

template <typename T>
constexpr DType kWide = DType::kFloat32;
template <>
constexpr DType kWide<double> = DType::kFloat64;

// A gradient of one of the types, and its values.
template <typename T>
struct Gradient {
  Gradient(DType dtype, int64_t count)
      : type(dtype), wide(Normals<T>(1, count)) {
    for (T& value : wide) {
      if (type == kWide<T>) break;
      narrow.push_back(type == DType::kFloat16
                           ? FloatToFloat16(static_cast<float>(value))
                           : FloatToBFloat16(static_cast<float>(value)));
      value = type == DType::kFloat16 ? Float16ToFloat(narrow.back())
                                      : BFloat16ToFloat(narrow.back());
    }
  }
  const void* data() const {
    return type == kWide<T> ? static_cast<const void*>(wide.data())
                            : static_cast<const void*>(narrow.data());
  }
  DType type;
  std::vector<T> wide;
  std::vector<uint16_t> narrow;
};

// One pass alone, by what it is for.

template <typename T>
LowRankPass<T> Accumulation(const void* gradient, DType type, const T* previous,
                            const LowRankProduct<T>& product, T* x, int64_t n,
                            int64_t m) {
  LowRankPass<T> pass;
  pass.gradient = gradient;
  pass.type = type;
  pass.previous = previous;
  pass.product = product;
  pass.out = x;
  pass.n = n;
  pass.m = m;
  return pass;
}

template <typename T>
LowRankPass<T> WithFactor(LowRankPass<T> pass, const T* factor, int64_t r,
                          T* result) {
  pass.factor = factor;
  pass.r = r;
  pass.result = result;
  return pass;
}

template <typename T>
void AccumulateProject(const void* gradient, DType type, const T* previous,
                       const LowRankProduct<T>& product, T* x, const T* q,
                       int64_t r, T* p, int64_t n, int64_t m) {
  const auto pass = Accumulation(gradient, type, previous, product, x, n, m);
  PassOverRows<T>({WithFactor(pass, q, r, p)});
}

template <typename T>
void AccumulateProjectTransposed(const void* gradient, DType type,
                                 const T* previous,
                                 const LowRankProduct<T>& product, T* x,
                                 const T* p, int64_t r, T* q, int64_t n,
                                 int64_t m) {
  const auto pass = Accumulation(gradient, type, previous, product, x, n, m);
  PassOverColumns<T>({WithFactor(pass, p, r, q)});
}

template <typename T>
void ProjectTransposed(const void* x, DType type, const T* p, int64_t r, T* q,
                       int64_t n, int64_t m) {
  AccumulateProjectTransposed<T>(x, type, nullptr, {}, nullptr, p, r, q, n, m);
}

template <typename T>
LowRankPass<T> Reconstruction(const LowRankProduct<T>& product, void* out,
                              DType type, int64_t n, int64_t m) {
  LowRankPass<T> pass;
  pass.product = product;
  pass.out = out;
  pass.out_type = type;
  pass.n = n;
  pass.m = m;
  return pass;
}

template <typename T>
void Reconstruct(const LowRankProduct<T>& product, void* out, DType type,
                 int64_t n, int64_t m) {
  PassOverRows<T>({Reconstruction(product, out, type, n, m)});
}

template <typename T>
void SubtractProduct(const T* x, const LowRankProduct<T>& product, T* out,
                     int64_t n, int64_t m) {
  PassOverRows<T>({Accumulation<T>(x, LowRankPass<T>::kOwnType, nullptr,
                                   product, out, n, m)});
}

struct Case {
  int64_t n, m, r, product_r;
};
std::vector<Case> Cases() {
  std::vector<Case> cases = {{0, 5, 2, 1},     {5, 0, 2, 1},    {1, 1, 1, 1},
                             {1, 9, 1, 0},     {9, 1, 1, 2},    {4, 16, 4, 4},
                             {5, 17, 3, 3},    {23, 150, 8, 8}, {7, 63, 5, 2},
                             {64, 27, 4, 4},   {130, 9, 2, 1},  {3, 70, 0, 3},
                             {33, 1031, 4, 5}, {258, 40, 9, 6}};
  // Large enough for threads and for stores past the caches.
  cases.push_back({259, 1031, 4, 4});
  return cases;
}

template <typename T>
class LowRankTest : public testing::Test {
 protected:
  static constexpr T kPoison = static_cast<T>(12345);

  struct Input {
    Input(const Case& shape, DType type)
        : gradient(type, shape.n * shape.m),
          previous(Normals<T>(2, shape.n * shape.m)),
          product_p(Normals<T>(3, shape.n * shape.product_r)),
          product_q(Normals<T>(4, shape.m * shape.product_r)),
          p(Normals<T>(5, shape.n * shape.r)),
          q(Normals<T>(6, shape.m * shape.r)) {}
    Gradient<T> gradient;
    std::vector<T> previous, product_p, product_q, p, q;
  };

  static std::vector<T> Accumulated(const Case& shape, const Input& in,
                                    bool has_previous) {
    std::vector<T> x;
    for (int64_t i = 0; i < shape.n; ++i) {
      for (int64_t j = 0; j < shape.m; ++j) {
        const auto at = static_cast<size_t>(i * shape.m + j);
        T start = in.gradient.wide[at];
        if (has_previous) start += in.previous[at];
        x.push_back(Oracle<T>::Combine(true, start, -1, in.product_p,
                                       in.product_q, shape.product_r, shape.n,
                                       shape.m, i, j));
      }
    }
    return x;
  }

  static void ExpectAccumulated(const Case& shape, DType type,
                                bool has_previous) {
    const auto& [n, m, r, product_r] = shape;
    const Input in(shape, type);
    const auto x = Accumulated(shape, in, has_previous);
    const auto p = Oracle<T>::Project(x, in.q, n, m, r);
    const auto q = Oracle<T>::ProjectTransposed(x, in.p, n, m, r);
    const LowRankProduct<T> product{in.product_p.data(), in.product_q.data(),
                                    product_r};
    ForEveryTarget([&, n = n, m = m, r = r] {
      Guarded<T> previous(n * m, 1, kPoison), out(n * m, 3, kPoison);
      Guarded<T> out_p(n * r, 1, kPoison), out_q(m * r, 1, kPoison);
      previous.Fill(in.previous);
      const T* old = has_previous ? previous.data() : nullptr;
      AccumulateProject(in.gradient.data(), type, old, product, out.data(),
                        in.q.data(), r, out_p.data(), n, m);
      ASSERT_TRUE(SameBits(out.Values(), x));
      ASSERT_TRUE(SameBits(out_p.Values(), p));
      ASSERT_TRUE(SameBits(previous.Values(), in.previous));
      AccumulateProjectTransposed<T>(in.gradient.data(), type, old, product,
                                     nullptr, in.p.data(), r, out_q.data(), n,
                                     m);
      ASSERT_TRUE(SameBits(out_q.Values(), q));
      if (has_previous) {  // in place
        T* both = previous.data();
        AccumulateProjectTransposed<T>(in.gradient.data(), type, both, product,
                                       both, in.p.data(), r, out_q.data(), n,
                                       m);
        ASSERT_TRUE(SameBits(previous.Values(), x));
        ASSERT_TRUE(SameBits(out_q.Values(), q));
        previous.Fill(in.previous);
        AccumulateProject<T>(in.gradient.data(), type, both, product, both,
                             in.q.data(), r, out_p.data(), n, m);
        ASSERT_TRUE(SameBits(previous.Values(), x));
        ASSERT_TRUE(SameBits(out_p.Values(), p));
      }
      for (auto* values : {&previous, &out, &out_p, &out_q}) {
        ASSERT_TRUE(values->IsIntact());
      }
    });
  }

  static void ExpectReconstructed(const Case& shape) {
    const auto& [n, m, r, product_r] = shape;
    const Input in(shape, kWide<T>);
    const auto q = Oracle<T>::ProjectTransposed(in.previous, in.p, n, m, r);
    std::vector<T> made, rest;
    std::vector<uint16_t> float16, bfloat16;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        const auto combined = [&, n = n, m = m](bool has_start, T start) {
          return Oracle<T>::Combine(has_start, start, has_start ? -1 : 1,
                                    in.product_p, in.product_q, shape.product_r,
                                    n, m, i, j);
        };
        made.push_back(combined(false, 0));
        rest.push_back(combined(true, in.previous[made.size() - 1]));
      }
    }
    std::vector<double> exact(made.begin(), made.end());
    float16.resize(made.size());
    bfloat16.resize(made.size());
    const LowRankProduct<T> product{in.product_p.data(), in.product_q.data(),
                                    product_r};
    ForEveryTarget([&, n = n, m = m, r = r] {
      Guarded<T> out(n * m, 5, kPoison), out_q(m * r, 1, kPoison);
      Guarded<uint16_t> narrow(n * m, 3, 0x5555);
      Reconstruct(product, out.data(), kWide<T>, n, m);
      ASSERT_TRUE(SameBits(out.Values(), made));
      Reconstruct(product, narrow.data(), DType::kBFloat16, n, m);
      if (sizeof(T) == 4) {
        for (size_t i = 0; i < made.size(); ++i) {
          ASSERT_EQ(narrow.data()[i],
                    FloatToBFloat16(static_cast<float>(made[i])));
        }
      }
      SubtractProduct(in.previous.data(), product, out.data(), n, m);
      ASSERT_TRUE(SameBits(out.Values(), rest));
      out.Fill(in.previous);
      SubtractProduct<T>(out.data(), product, out.data(), n, m);
      ASSERT_TRUE(SameBits(out.Values(), rest));
      ProjectTransposed(in.previous.data(), kWide<T>, in.p.data(), r,
                        out_q.data(), n, m);
      ASSERT_TRUE(SameBits(out_q.Values(), q));
      ASSERT_TRUE(out.IsIntact());
      ASSERT_TRUE(out_q.IsIntact());
      ASSERT_TRUE(narrow.IsIntact());
    });
  }
};

// A batch of passes, and memory of its own for what they write.
template <typename T>
class Batch {
 public:
  static constexpr T kPoison = static_cast<T>(12345);

  // Every case with every type of gradient, with and without what a pass can
  // do without, in place, and a reconstruction.
  explicit Batch(bool over_rows) : over_rows_(over_rows) {
    int turn = 0;
    for (const Case& shape : Cases()) {
      for (const DType type :
           {LowRankPass<T>::kOwnType, DType::kFloat16, DType::kBFloat16}) {
        if (type != LowRankPass<T>::kOwnType && shape.n * shape.m > 100000) {
          continue;
        }
        Add(shape, type, turn++ % 4);
      }
      if (over_rows) AddReconstruction(shape, turn % 2 == 0);
    }
  }

  void RunTogether() { Run(passes_); }
  void RunOneByOne() {
    for (const LowRankPass<T>& pass : passes_) Run({pass});
  }

  // All that was written, and whether nothing else was.
  std::vector<std::vector<T>> Written() {
    std::vector<std::vector<T>> all;
    for (auto& memory : written_) all.push_back(memory->Values());
    return all;
  }
  bool IsIntact() {
    return std::all_of(written_.begin(), written_.end(),
                       [](auto& memory) { return memory->IsIntact(); });
  }

 private:
  // Way 0: all of it; 1: X is not kept; 2: X in place; 3: nothing but the
  // gradient.
  void Add(const Case& shape, DType type, int way) {
    const auto& [n, m, r, product_r] = shape;
    gradients_.push_back(std::make_unique<Gradient<T>>(type, n * m));
    LowRankPass<T> pass;
    pass.gradient = gradients_.back()->data();
    pass.type = type;
    pass.n = n;
    pass.m = m;
    if (way < 3) {
      T* previous = Room(n * m, Normals<T>(2, n * m));
      pass.previous = previous;
      pass.product = {Constant(3, n * product_r), Constant(4, m * product_r),
                      product_r};
      if (way == 0) pass.out = Room(n * m, {});
      if (way == 2) pass.out = previous;
    }
    const int64_t in = over_rows_ ? m : n;
    const int64_t out = over_rows_ ? n : m;
    passes_.push_back(
        WithFactor(pass, Constant(5, in * r), r, Room(out * r, {})));
  }

  void AddReconstruction(const Case& shape, bool narrow) {
    const auto& [n, m, r, product_r] = shape;
    const LowRankProduct<T> product{Constant(3, n * product_r),
                                    Constant(4, m * product_r), product_r};
    passes_.push_back(Reconstruction(
        product, Room(n * m, {}),
        narrow ? DType::kBFloat16 : LowRankPass<T>::kOwnType, n, m));
  }

  void Run(const std::vector<LowRankPass<T>>& passes) {
    over_rows_ ? PassOverRows(passes) : PassOverColumns(passes);
  }

  const T* Constant(uint64_t stream, int64_t count) {
    constants_.push_back(Normals<T>(stream, count));
    return constants_.back().data();
  }
  T* Room(int64_t count, const std::vector<T>& values) {
    written_.push_back(std::make_unique<Guarded<T>>(count, 1, kPoison));
    written_.back()->Fill(values);
    return written_.back()->data();
  }

  const bool over_rows_;
  std::vector<std::unique_ptr<Gradient<T>>> gradients_;
  std::vector<std::vector<T>> constants_;
  std::vector<std::unique_ptr<Guarded<T>>> written_;
  std::vector<LowRankPass<T>> passes_;
};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(LowRankTest, Types);

TYPED_TEST(LowRankTest, BitsAreThoseOfTheDocumentedOrder) {
  for (const Case& shape : Cases()) {
    SCOPED_TRACE(std::to_string(shape.n) + " x " + std::to_string(shape.m));
    this->ExpectAccumulated(shape, kWide<TypeParam>, true);
    this->ExpectAccumulated(shape, kWide<TypeParam>, false);
    this->ExpectReconstructed(shape);
  }
}

TYPED_TEST(LowRankTest, NarrowGradientsAreWidened) {
  for (const Case& shape : Cases()) {
    if (shape.n * shape.m > 100000) continue;
    SCOPED_TRACE(std::to_string(shape.n) + " x " + std::to_string(shape.m));
    this->ExpectAccumulated(shape, DType::kFloat16, true);
    this->ExpectAccumulated(shape, DType::kBFloat16, false);
  }
}

// The oracle's order is a choice; its values are not.
TYPED_TEST(LowRankTest, ValuesAreThoseOfTheDefinition) {
  using T = TypeParam;
  const int64_t n = 300, m = 210, r = 5;
  const auto x = Normals<T>(1, n * m);
  const auto p = Normals<T>(2, n * r);
  const auto q = Normals<T>(3, m * r);
  const LowRankProduct<T> product{p.data(), q.data(), r};
  std::vector<T> projected(n * r), transposed(m * r), made(n * m);
  AccumulateProject<T>(x.data(), kWide<T>, nullptr, {}, nullptr, q.data(), r,
                       projected.data(), n, m);
  ProjectTransposed(x.data(), kWide<T>, p.data(), r, transposed.data(), n, m);
  Reconstruct(product, made.data(), kWide<T>, n, m);
  const double tolerance = 500.0 * std::numeric_limits<T>::epsilon();
  for (int64_t k = 0; k < r; ++k) {
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < m; ++j)
        sum += double{x[i * m + j]} * q[k * m + j];
      ASSERT_NEAR(projected[k * n + i], sum, tolerance);
    }
    for (int64_t j = 0; j < m; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i)
        sum += double{x[i * m + j]} * p[k * n + i];
      ASSERT_NEAR(transposed[k * m + j], sum, tolerance);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < r; ++k)
        sum += double{p[k * n + i]} * q[k * m + j];
      ASSERT_NEAR(made[i * m + j], sum, tolerance);
    }
  }
}

TYPED_TEST(LowRankTest, WhatIsNotFiniteShowsInItsRowAndColumn) {
  using T = TypeParam;
  const int64_t n = 21, m = 70, r = 3;
  auto x = Normals<T>(1, n * m);
  x[5 * m + 69] = std::numeric_limits<T>::quiet_NaN();
  x[20 * m + 2] = std::numeric_limits<T>::infinity();
  const auto p = Normals<T>(2, n * r);
  const auto q = Normals<T>(3, m * r);
  ForEveryTarget([&] {
    std::vector<T> projected(n * r), transposed(m * r);
    AccumulateProject<T>(x.data(), kWide<T>, nullptr, {}, nullptr, q.data(), r,
                         projected.data(), n, m);
    ProjectTransposed(x.data(), kWide<T>, p.data(), r, transposed.data(), n, m);
    for (int64_t i = 0; i < n * r; ++i) {
      ASSERT_EQ(std::isfinite(projected[i]), i % n != 5 && i % n != 20) << i;
    }
    for (int64_t j = 0; j < m * r; ++j) {
      ASSERT_EQ(std::isfinite(transposed[j]), j % m != 69 && j % m != 2) << j;
    }
  });
}

TYPED_TEST(LowRankTest, ABatchIsThePassesOneByOne) {
  for (const bool over_rows : {true, false}) {
    SCOPED_TRACE(over_rows ? "over rows" : "over columns");
    Batch<TypeParam> alone(over_rows);
    alone.RunOneByOne();
    const auto expected = alone.Written();
    for (int threads = 1; threads <= 8; ++threads) {
      SetKernelThreads(threads);
      Batch<TypeParam> batch(over_rows);
      batch.RunTogether();
      const auto written = batch.Written();
      ASSERT_EQ(written.size(), expected.size());
      for (size_t i = 0; i < written.size(); ++i) {
        ASSERT_TRUE(SameBits(written[i], expected[i])) << i << ", " << threads;
      }
      ASSERT_TRUE(batch.IsIntact()) << threads;
    }
    SetKernelThreads(1);
  }
}

TYPED_TEST(LowRankTest, ABatchIsOneParallelRegion) {
  SetKernelThreads(3);
  for (const bool over_rows : {true, false}) {
    Batch<TypeParam> batch(over_rows);
    const int64_t before = ParallelRegions();
    batch.RunTogether();
    EXPECT_EQ(ParallelRegions(), before + 1);
  }
  // Nor does an empty one wake a thread.
  const int64_t before = ParallelRegions();
  PassOverRows<TypeParam>({});
  EXPECT_EQ(ParallelRegions(), before);
  SetKernelThreads(1);
}

}  // namespace
}  // namespace coxswain
