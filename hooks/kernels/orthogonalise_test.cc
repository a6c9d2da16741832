#include "hooks/kernels/orthogonalise.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hooks/kernels/every_target.h"

namespace coxswain::orthogonalise_test {
namespace {

constexpr Orthogonalisation kMethods[] = {Orthogonalisation::kAuto,
                                          Orthogonalisation::kCholeskyQr2,
                                          Orthogonalisation::kGramSchmidt};

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
class OrthogonaliseTest : public testing::Test {
 protected:
  static constexpr double kTolerance = sizeof(T) == 4 ? 5e-7 : 1e-14;

  static int64_t Run(std::vector<T>* a, int64_t n, int64_t r,
                     Orthogonalisation method, double epsilon = 0) {
    return Orthogonalise<T>({{a->data(), n, r}}, method, epsilon)[0];
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
      const T* column = before.data() + k * n;
      double norm = 0;
      std::vector<double> rest(column, column + n);
      for (const double value : rest) norm += value * value;
      for (int64_t i = 0; i <= k; ++i) {
        double along = 0;
        for (int64_t j = 0; j < n; ++j)
          along += double{a[i * n + j]} * column[j];
        for (int64_t j = 0; j < n; ++j) rest[j] -= along * a[i * n + j];
      }
      double left = 0;
      for (const double value : rest) left += value * value;
      ASSERT_LE(std::sqrt(left), 10 * kTolerance * std::sqrt(norm)) << k;
    }
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(OrthogonaliseTest, Types);

TYPED_TEST(OrthogonaliseTest, ColumnsBecomeAnOrthonormalBasis) {
  using T = TypeParam;
  for (const auto& [n, r] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                {4, 4},
                                                {5, 2},
                                                {9, 3},
                                                {64, 1},
                                                {67, 8},
                                                {513, 4},
                                                {1000, 7},
                                                {5003, 4},
                                                {200, 33}}) {
    const auto before = Normals<T>(1, n * r);
    for (const auto method : kMethods) {
      SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(r));
      auto a = before;
      EXPECT_EQ(this->Run(&a, n, r, method), 0);
      this->ExpectBasis(before, a, n, r);
    }
  }
}

// Columns that are nearly the first one, down to the rounding of the type.
TYPED_TEST(OrthogonaliseTest, NearlyDependentColumnsToo) {
  using T = TypeParam;
  const int64_t n = 700, r = 4;
  const double last = sizeof(T) == 4 ? 1e-4 : 1e-11;
  for (double size = 0.1; size > last; size /= 5) {
    auto before = Normals<T>(2, n * r);
    for (int64_t i = n; i < n * r; ++i) {
      before[i] = static_cast<T>(before[i % n] + size * before[i]);
    }
    for (const auto method : kMethods) {
      SCOPED_TRACE(size);
      auto a = before;
      EXPECT_EQ(this->Run(&a, n, r, method), 0);
      this->ExpectBasis(before, a, n, r);
    }
  }
}

TYPED_TEST(OrthogonaliseTest, BitsAreThoseOfEveryTargetAndThreadCount) {
  using T = TypeParam;
  struct Shape {
    int64_t n, r;
  };
  const std::vector<Shape> shapes = {{0, 2},     {1, 1},    {7, 3}, {63, 4},
                                     {70, 9},    {5001, 4}, {3, 5}, {801, 2},
                                     {40000, 4}, {30001, 3}};
  for (const auto method : kMethods) {
    std::vector<std::vector<T>> expected;
    ForEveryTarget([&] {
      std::vector<Guarded<T>> arrays;
      std::vector<TallMatrix<T>> matrices;
      for (const auto& [n, r] : shapes) {
        arrays.emplace_back(n * r, 1, T{99});
        arrays.back().Fill(Normals<T>(3, n * r));
        matrices.push_back({arrays.back().data(), n, r});
      }
      const auto zeros = Orthogonalise(matrices, method, 0);
      ASSERT_EQ(zeros, (std::vector<int64_t>{2, 0, 0, 0, 0, 0, 2, 0, 0, 0}));
      for (size_t i = 0; i < shapes.size(); ++i) {
        ASSERT_TRUE(arrays[i].IsIntact());
        if (expected.size() == i) expected.push_back(arrays[i].Values());
        ASSERT_TRUE(SameBits(arrays[i].Values(), expected[i])) << i;
      }
    });
  }
}

TYPED_TEST(OrthogonaliseTest, ColumnsWithoutDirectionBecomeZero) {
  using T = TypeParam;
  const int64_t n = 8;
  for (const auto method : kMethods) {
    auto a = Normals<T>(5, n * 6);
    for (size_t i = 0; i < 8; ++i) {
      a[8 + i] = 0;                           // zero
      a[16 + i] = static_cast<T>(-3) * a[i];  // along the first
      a[24 + i] = i == 3 ? std::numeric_limits<T>::infinity() : T{1};
      if (i == 5) a[32 + i] = std::numeric_limits<T>::quiet_NaN();
    }
    EXPECT_EQ(this->Run(&a, n, 6, method), 4);
    for (size_t i = 8; i < 40; ++i) EXPECT_EQ(a[i], T{0});
    EXPECT_NEAR(Dot(a, n, 0, 0), 1, this->kTolerance);
    EXPECT_NEAR(Dot(a, n, 5, 5), 1, this->kTolerance);
    EXPECT_NEAR(Dot(a, n, 5, 0), 0, this->kTolerance);
  }
}

// The same directions whatever the length of the columns.
TYPED_TEST(OrthogonaliseTest, DenormalAndHugeColumnsAreLikeOthers) {
  using T = TypeParam;
  const int64_t n = 100, r = 3;
  const int smallest = std::numeric_limits<T>::min_exponent;
  const int largest = std::numeric_limits<T>::max_exponent - 4;
  for (const auto method : kMethods) {
    auto a = Normals<T>(6, n * r);
    const int exponents[] = {smallest - 4, largest, 0};
    for (int64_t i = 0; i < n * r; ++i) {
      a[i] = std::scalbn(a[i], exponents[i / n]);
    }
    const auto before = a;
    EXPECT_EQ(this->Run(&a, n, r, method), 0);
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        EXPECT_NEAR(Dot(a, n, i, j), i == j ? 1 : 0, this->kTolerance);
      }
    }
    // The first column keeps its direction, as far as denormals had one.
    const double length = std::sqrt([&] {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double value = std::scalbn(double{before[j]}, -smallest);
        sum += value * value;
      }
      return sum;
    }());
    for (int64_t j = 0; j < n; ++j) {
      EXPECT_NEAR(a[j], std::scalbn(double{before[j]}, -smallest) / length,
                  this->kTolerance);
    }
  }
}

TYPED_TEST(OrthogonaliseTest, EpsilonIsAddedToTheNormByGramSchmidt) {
  using T = TypeParam;
  for (const auto method :
       {Orthogonalisation::kAuto, Orthogonalisation::kGramSchmidt}) {
    std::vector<T> a = {3, 4};
    this->Run(&a, 2, 1, method, 5);
    EXPECT_NEAR(a[0], 0.3, 1e-6);
    EXPECT_NEAR(a[1], 0.4, 1e-6);
  }
}

}  // namespace
}  // namespace coxswain::orthogonalise_test
