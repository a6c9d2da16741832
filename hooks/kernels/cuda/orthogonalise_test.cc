#include "hooks/kernels/cuda/orthogonalise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "hooks/kernels/every_target.h"
#include "hooks/kernels/orthogonalise.h"

namespace coxswain::orthogonalise_test {
namespace {

class AtOnce : public HostStream {
 public:
  void Enqueue(std::function<void()> work) override { work(); }
};

enum class Method { kCholesky, kGramSchmidt };

template <typename T>
double Dot(const std::vector<T>& a, int64_t n, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) {
    sum += double{a[static_cast<size_t>(i * n + k)]} *
           double{a[static_cast<size_t>(j * n + k)]};
  }
  return sum;
}

template <typename T>
class DeviceOrthogonaliseTest : public testing::Test {
 protected:
  static constexpr double kTolerance = sizeof(T) == 4 ? 5e-7 : 1e-14;

  struct Run {
    std::vector<DeviceTallMatrix<T>> table;
    std::vector<TallShape> shapes;
    uint64_t order = 0;
    uint64_t seed = 7;
    uint64_t step = 5;
    bool redraws = false;
    uint32_t poisoned = 0;

    void Add(const T* from, T* to, int64_t n, int64_t r, Method method,
             double epsilon = 0) {
      DeviceTallMatrix<T> matrix;
      matrix.from = from;
      matrix.to = to;
      matrix.n = n;
      matrix.r = r;
      matrix.epsilon = epsilon;
      matrix.cholesky = method == Method::kCholesky ? 1 : 0;
      matrix.stream = 11;
      table.push_back(matrix);
      shapes.push_back({n, r});
    }
    int64_t Go() {
      const TallPlan plan = PlanOrthogonalise(shapes, sizeof(T));
      std::vector<double> partials(static_cast<size_t>(plan.partials), 1e30);
      AtOnce stream;
      LaunchTarget target;
      target.host = &stream;
      target.launches = static_cast<int64_t>(order);
      DeviceTall<T> on;
      on.plan = &plan;
      on.strips = plan.strips.data();
      on.matrices = table.data();
      on.partials = partials.data();
      on.seed = seed;
      on.step = &step;
      on.redraws = redraws;
      on.poisoned = &poisoned;
      OrthogonaliseOnDevice(&target, on);
      EXPECT_EQ(target.error, 0);
      return target.launches - static_cast<int64_t>(order);
    }
  };

  static void One(std::vector<T>* a, int64_t n, int64_t r, Method method,
                  double epsilon = 0) {
    Run run;
    run.Add(a->data(), a->data(), n, r, method, epsilon);
    EXPECT_LE(run.Go(), 2);
  }

  // Orthonormal, and spanning from left to right what `before` did.
  static void ExpectBasis(const std::vector<T>& before, const std::vector<T>& a,
                          int64_t n, int64_t r) {
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        ASSERT_NEAR(Dot(a, n, i, j), i == j ? 1 : 0, kTolerance) << i << j;
      }
    }
    for (int64_t k = 0; k < r; ++k) {
      const T* const column = before.data() + k * n;
      std::vector<double> rest(column, column + n);
      double norm = 0, left = 0;
      for (const double value : rest) norm += value * value;
      for (int64_t i = 0; i <= k; ++i) {
        double along = 0;
        for (int64_t j = 0; j < n; ++j) {
          along += double{a[i * n + j]} * column[j];
        }
        for (int64_t j = 0; j < n; ++j) rest[j] -= along * a[i * n + j];
      }
      for (const double value : rest) left += value * value;
      ASSERT_LE(std::sqrt(left), 10 * kTolerance * std::sqrt(norm)) << k;
    }
  }

  static std::vector<TallShape> Shapes() {
    return {{1, 1},     {4, 4},    {5, 2},    {9, 3},    {64, 1},
            {67, 8},    {513, 4},  {1000, 7}, {5003, 4}, {40000, 4},
            {30001, 3}, {200, 12}, {700, 32}, {1500, 5}, {200, 33}};
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(DeviceOrthogonaliseTest, Types);

TYPED_TEST(DeviceOrthogonaliseTest, ColumnsBecomeAnOrthonormalBasis) {
  using T = TypeParam;
  for (const auto& [n, r] : this->Shapes()) {
    SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(r));
    const auto before = Normals<T>(1, n * r);
    for (const auto method : {Method::kCholesky, Method::kGramSchmidt}) {
      auto a = before;
      this->One(&a, n, r, method);
      this->ExpectBasis(before, a, n, r);
    }
  }
}

TYPED_TEST(DeviceOrthogonaliseTest, AsOnTheCpu) {
  using T = TypeParam;
  for (const auto& [n, r] : this->Shapes()) {
    SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(r));
    auto expected = Normals<T>(2, n * r);
    auto a = expected;
    Orthogonalise<T>({{expected.data(), n, r}}, Orthogonalisation::kCholeskyQr2,
                     0);
    this->One(&a, n, r, Method::kCholesky);
    for (size_t i = 0; i < a.size(); ++i) {
      // Square matrices of normals are conditioned worst.
      ASSERT_NEAR(a[i], expected[i], (n == r ? 40 : 4) * this->kTolerance);
    }
  }
}

TYPED_TEST(DeviceOrthogonaliseTest, NearlyDependentColumnsToo) {
  using T = TypeParam;
  const int64_t n = 700, r = 4;
  const double last = sizeof(T) == 4 ? 1e-4 : 1e-11;
  for (double size = 0.1; size > last; size /= 5) {
    SCOPED_TRACE(size);
    auto before = Normals<T>(2, n * r);
    for (int64_t i = n; i < n * r; ++i) {
      before[i] = static_cast<T>(before[i % n] + size * before[i]);
    }
    auto a = before;
    this->One(&a, n, r, Method::kCholesky);
    this->ExpectBasis(before, a, n, r);
  }
}

// Neither the order of blocks and threads nor the rest of the list.
TYPED_TEST(DeviceOrthogonaliseTest, BitsAreAFunctionOfTheMatrixAlone) {
  using T = TypeParam;
  // Ranks up to 4, of which the sums are the same in all programs.
  const std::vector<TallShape> shapes = {{63, 4}, {5001, 4}, {40000, 3},
                                         {1, 1},  {3, 4},    {801, 3}};
  std::vector<std::vector<T>> expected;
  for (const auto& [n, r] : shapes) {
    expected.push_back(Normals<T>(3, n * r));
    this->One(&expected.back(), n, r, Method::kCholesky);
  }
  for (uint64_t order = 0; order < 4; ++order) {
    std::vector<Guarded<T>> arrays;
    typename TestFixture::Run run;
    run.order = order;
    for (const auto& [n, r] : shapes) {
      arrays.emplace_back(n * r, 1, T{99});
      arrays.back().Fill(Normals<T>(3, n * r));
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      run.Add(arrays[i].data(), arrays[i].data(), shapes[i].n, shapes[i].r,
              Method::kCholesky);
    }
    EXPECT_LE(run.Go(), 2);
    for (size_t i = 0; i < shapes.size(); ++i) {
      ASSERT_TRUE(arrays[i].IsIntact());
      ASSERT_TRUE(SameBits(arrays[i].Values(), expected[i])) << i;
    }
  }
}

TYPED_TEST(DeviceOrthogonaliseTest, ColumnsWithoutDirectionBecomeZero) {
  using T = TypeParam;
  const int64_t n = 8;
  for (const auto method : {Method::kCholesky, Method::kGramSchmidt}) {
    auto a = Normals<T>(5, n * 6);
    for (size_t i = 0; i < 8; ++i) {
      a[8 + i] = 0;                           // zero
      a[16 + i] = static_cast<T>(-3) * a[i];  // along the first
      a[24 + i] = i == 3 ? std::numeric_limits<T>::infinity() : T{1};
      if (i == 5) a[32 + i] = std::numeric_limits<T>::quiet_NaN();
    }
    this->One(&a, n, 6, method);
    for (size_t i = 8; i < 40; ++i) EXPECT_EQ(a[i], T{0});
    EXPECT_NEAR(Dot(a, n, 0, 0), 1, this->kTolerance);
    EXPECT_NEAR(Dot(a, n, 5, 5), 1, this->kTolerance);
    EXPECT_NEAR(Dot(a, n, 5, 0), 0, this->kTolerance);
    // More columns than rows: those beyond are zero.
    a = Normals<T>(6, 3 * 5);
    this->One(&a, 3, 5, method);
    for (size_t i = 9; i < 15; ++i) EXPECT_EQ(a[i], T{0});
    EXPECT_NEAR(Dot(a, 3, 2, 2), 1, this->kTolerance);
  }
}

TYPED_TEST(DeviceOrthogonaliseTest, DenormalAndHugeColumnsAreLikeOthers) {
  using T = TypeParam;
  const int64_t n = 100, r = 3;
  const int exponents[] = {std::numeric_limits<T>::min_exponent - 4,
                           std::numeric_limits<T>::max_exponent - 4, 0};
  for (const auto method : {Method::kCholesky, Method::kGramSchmidt}) {
    auto a = Normals<T>(6, n * r);
    for (int64_t i = 0; i < n * r; ++i) {
      a[i] = std::scalbn(a[i], exponents[i / n]);
    }
    auto expected = a;
    Orthogonalise<T>({{expected.data(), n, r}}, Orthogonalisation::kGramSchmidt,
                     0);
    this->One(&a, n, r, method);
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], expected[i], this->kTolerance);
    }
  }
}

TYPED_TEST(DeviceOrthogonaliseTest, EpsilonIsAddedToTheNorm) {
  using T = TypeParam;
  std::vector<T> a = {3, 4};
  this->One(&a, 2, 1, Method::kGramSchmidt, 5);
  EXPECT_NEAR(a[0], 0.3, 1e-6);
  EXPECT_NEAR(a[1], 0.4, 1e-6);
  const int64_t n = 300;
  auto wide = Normals<T>(8, 2 * n);
  auto expected = wide;
  Orthogonalise<T>({{expected.data(), n, 2}}, Orthogonalisation::kAuto, 1e-2);
  this->One(&wide, n, 2, Method::kGramSchmidt, 1e-2);
  for (size_t i = 0; i < wide.size(); ++i) {
    ASSERT_NEAR(wide[i], expected[i], this->kTolerance);
  }
}

TYPED_TEST(DeviceOrthogonaliseTest, DrawsAsCounterRandomDoes) {
  using T = TypeParam;
  for (const auto& [n, r] :
       std::vector<std::pair<int64_t, int64_t>>{{1000, 4}, {3, 1}, {700, 20}}) {
    std::vector<T> a(static_cast<size_t>(n * r)), expected;
    typename TestFixture::Run run;
    run.Add(nullptr, a.data(), n, r, Method::kCholesky);
    run.Go();
    const CounterRandom random(run.seed, 11 ^ Mix64(run.step));
    for (int64_t i = 0; i < n * r; ++i) {
      expected.push_back(
          static_cast<T>(random.Normal(static_cast<uint64_t>(i))));
    }
    this->One(&expected, n, r, Method::kCholesky);
    EXPECT_TRUE(SameBits(a, expected));
    run.step = 6;
    run.Go();
    EXPECT_FALSE(SameBits(a, expected));
  }
}

TYPED_TEST(DeviceOrthogonaliseTest, RedrawsColumnsThatBecameZero) {
  using T = TypeParam;
  for (const auto& [n, r] :
       std::vector<std::pair<int64_t, int64_t>>{{500, 4}, {900, 1}, {70, 9}}) {
    const auto start = Normals<T>(9, n * r);
    auto a = start;
    const auto zero = static_cast<size_t>((r - 1) * n);
    std::fill(a.begin() + static_cast<int64_t>(zero), a.end(), T{0});
    const auto before = a;
    auto to = std::vector<T>(a.size());
    typename TestFixture::Run run;
    run.redraws = true;
    run.Add(a.data(), to.data(), n, r, Method::kCholesky);
    run.table[0].redraw = 1;
    EXPECT_LE(run.Go(), 2);
    EXPECT_TRUE(SameBits(a, before));  // `from` is left alone
    const CounterRandom random(run.seed, 11 ^ Mix64(run.step));
    for (size_t i = zero; i < a.size(); ++i) {
      a[i] = static_cast<T>(random.Normal(i));
    }
    this->ExpectBasis(a, to, n, r);
  }
}

TYPED_TEST(DeviceOrthogonaliseTest, APoisonedStepIsLeftAlone) {
  using T = TypeParam;
  auto a = Normals<T>(1, 400);
  const auto before = a;
  typename TestFixture::Run run;
  run.poisoned = 1;
  run.Add(a.data(), a.data(), 100, 4, Method::kCholesky);
  run.Add(nullptr, a.data(), 100, 4, Method::kGramSchmidt);
  run.Go();
  EXPECT_TRUE(SameBits(a, before));
}

TYPED_TEST(DeviceOrthogonaliseTest, MoreColumnsThanABlockHasSumsFor) {
  using T = TypeParam;
  const int64_t n = 270, r = 260;
  const auto before = Normals<T>(1, n * r);
  auto a = before;
  this->One(&a, n, r, Method::kCholesky);
  for (int64_t i = 0; i < r; i += 7) {
    for (int64_t j = 0; j <= i; ++j) {
      ASSERT_NEAR(Dot(a, n, i, j), i == j ? 1 : 0, this->kTolerance);
    }
  }
}

TEST(TallPlanTest, StripsAreFewAndCoverTheRows) {
  const std::vector<TallShape> shapes = {
      {10, 4}, {0, 3}, {50000, 4}, {int64_t{1} << 33, 2}, {9000, 40}};
  const TallPlan plan = PlanOrthogonalise(shapes, 4);
  std::vector<int64_t> rows(shapes.size()), strips(shapes.size());
  for (const TallStrip& strip : plan.strips) {
    const auto i = static_cast<size_t>(strip.matrix);
    EXPECT_EQ(strip.row, rows[i]);
    EXPECT_EQ(strip.strip, strips[i]);
    rows[i] += strip.rows;
    ++strips[i];
    EXPECT_LE(strip.strips, 64);
  }
  for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(rows[i], shapes[i].n);
  EXPECT_EQ(strips, (std::vector<int64_t>{1, 0, 49, 64, 1}));
  EXPECT_EQ(plan.partials, 10 * (1 + 49) + 64 * 3);
  EXPECT_EQ(plan.rank, 40);
}

}  // namespace
}  // namespace coxswain::orthogonalise_test
