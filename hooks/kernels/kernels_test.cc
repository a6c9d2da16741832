#include "hooks/kernels/kernels.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "base/random.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

template <typename T>
std::vector<T> Normals(uint64_t stream, int64_t count) {
  const CounterRandom random(1, stream);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(random.Normal(static_cast<uint64_t>(i))));
  }
  return values;
}

template <typename T>
double DotOf(const std::vector<T>& a, int64_t n, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) {
    sum += double{a[static_cast<size_t>(i * n + k)]} *
           double{a[static_cast<size_t>(j * n + k)]};
  }
  return sum;
}

template <typename T>
class MatrixKernelTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(MatrixKernelTest, Types);

// Sizes around the widths of the loops.
struct Shape {
  int64_t n, m, r;
};
const Shape kShapes[] = {{1, 1, 1},  {1, 9, 1},   {9, 1, 1},   {4, 16, 4},
                         {5, 17, 3}, {16, 33, 5}, {23, 150, 8}};

TYPED_TEST(MatrixKernelTest, ProductsAreThoseOfTheDefinition) {
  using T = TypeParam;
  const double tolerance = 100.0 * std::numeric_limits<T>::epsilon();
  for (const auto& [n, m, r] : kShapes) {
    const auto x = Normals<T>(1, n * m);
    const auto p = Normals<T>(2, n * r);
    const auto q = Normals<T>(3, m * r);
    std::vector<T> projected(static_cast<size_t>(n * r), T{99});
    Project(x.data(), q.data(), projected.data(), n, m, r);
    std::vector<T> transposed(static_cast<size_t>(m * r), T{99});
    ProjectTransposed(x.data(), p.data(), transposed.data(), n, m, r);
    std::vector<T> product(static_cast<size_t>(n * m), T{99});
    Product(product.data(), p.data(), q.data(), n, m, r);
    std::vector<T> difference = x;
    SubtractProduct(difference.data(), p.data(), q.data(), n, m, r);
    const auto at = [](const std::vector<T>& v, int64_t i) {
      return double{v[static_cast<size_t>(i)]};
    };
    for (int64_t k = 0; k < r; ++k) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < m; ++j)
          sum += at(x, i * m + j) * at(q, k * m + j);
        ASSERT_NEAR(at(projected, k * n + i), sum, tolerance * 10);
      }
      for (int64_t j = 0; j < m; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i)
          sum += at(x, i * m + j) * at(p, k * n + i);
        ASSERT_NEAR(at(transposed, k * m + j), sum, tolerance * 10);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < r; ++k)
          sum += at(p, k * n + i) * at(q, k * m + j);
        ASSERT_NEAR(at(product, i * m + j), sum, tolerance * 10);
        ASSERT_NEAR(at(difference, i * m + j), at(x, i * m + j) - sum,
                    tolerance * 10);
      }
    }
  }
}

TYPED_TEST(MatrixKernelTest, OrthogonalisedColumnsAreOrthonormal) {
  using T = TypeParam;
  const double tolerance = 10.0 * std::numeric_limits<T>::epsilon();
  const int64_t n = 50;
  const int64_t r = 6;
  auto a = Normals<T>(4, n * r);
  // Nearly along the first column, which costs one pass its orthogonality.
  for (size_t i = 0; i < 50; ++i) {
    a[50 + i] = a[i] + static_cast<T>(1e-3) * a[50 + i];
  }
  EXPECT_EQ(Orthogonalise(a.data(), n, r, 0), 0);
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      EXPECT_NEAR(DotOf(a, n, i, j), i == j ? 1 : 0, tolerance);
    }
  }
}

TYPED_TEST(MatrixKernelTest, ColumnsWithoutDirectionBecomeZero) {
  using T = TypeParam;
  const int64_t n = 8;
  auto a = Normals<T>(5, n * 5);
  for (size_t i = 0; i < 8; ++i) {
    a[8 + i] = 0;                           // zero
    a[16 + i] = static_cast<T>(-3) * a[i];  // along the first
    a[24 + i] = i == 3 ? std::numeric_limits<T>::infinity() : T{1};
  }
  EXPECT_EQ(Orthogonalise(a.data(), n, 5, 0), 3);
  for (size_t i = 8; i < 32; ++i) EXPECT_EQ(a[i], T{0});
  EXPECT_NEAR(DotOf(a, n, 4, 4), 1, 1e-6);
  EXPECT_NEAR(DotOf(a, n, 4, 0), 0, 1e-6);
}

TYPED_TEST(MatrixKernelTest, EpsilonIsAddedToTheNorm) {
  using T = TypeParam;
  std::vector<T> a = {3, 4};
  Orthogonalise(a.data(), 2, 1, 5);
  EXPECT_NEAR(a[0], 0.3, 1e-6);
  EXPECT_NEAR(a[1], 0.4, 1e-6);
}

TYPED_TEST(MatrixKernelTest, EveryValueThatIsNotFiniteCounts) {
  using T = TypeParam;
  auto values = Normals<T>(6, 100);
  values[7] = std::numeric_limits<T>::max();
  EXPECT_EQ(CountNonFinite(values.data(), 100), 0);
  values[3] = std::numeric_limits<T>::infinity();
  values[50] = -std::numeric_limits<T>::infinity();
  values[99] = std::numeric_limits<T>::quiet_NaN();
  EXPECT_EQ(CountNonFinite(values.data(), 100), 3);
}

TEST(CastKernelTest, DividesBeforeItRounds) {
  // 98256 exceeds float16, a third of it does not.
  const float in[] = {98256.0f, 1.0f, -3.0f};
  uint16_t out[3];
  DivideToFloat16(in, out, 3, 3.0f);
  EXPECT_EQ(Float16ToFloat(out[0]), 32752.0f);
  EXPECT_EQ(out[1], FloatToFloat16(1.0f / 3.0f));
  EXPECT_EQ(out[2], FloatToFloat16(-1.0f));
  DivideToBFloat16(in, out, 3, 3.0f);
  EXPECT_EQ(out[1], FloatToBFloat16(1.0f / 3.0f));
}

// A double that lies just above halfway: through a float it would become a
// tie, and the tie would go the other way.
TEST(CastKernelTest, DoublesAreRoundedOnce) {
  const double tie = 1.0 + std::ldexp(1.0, -11);
  const double in[] = {tie + std::ldexp(1.0, -40), tie,
                       tie - std::ldexp(1.0, -40), 1e300,
                       std::numeric_limits<double>::quiet_NaN()};
  uint16_t out[5];
  DivideToFloat16(in, out, 5, 1.0);
  EXPECT_EQ(out[0], 0x3c01);
  EXPECT_EQ(out[1], 0x3c00);
  EXPECT_EQ(out[2], 0x3c00);
  EXPECT_EQ(out[3], 0x7c00);
  EXPECT_TRUE(std::isnan(Float16ToFloat(out[4])));
  const double brain = -(1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40));
  DivideToBFloat16(&brain, out, 1, 1.0);
  EXPECT_EQ(out[0], 0xbf81);
}

TEST(CastKernelTest, WideningIsExactAndDivisionIsInTheNarrowType) {
  uint16_t halves[] = {FloatToFloat16(10.0f), FloatToFloat16(1e-7f)};
  double wide[2];
  WidenFloat16(halves, wide, 2);
  EXPECT_EQ(wide[0], 10.0);
  EXPECT_EQ(wide[1], double{Float16ToFloat(halves[1])});
  DivideFloat16(halves, 2, 4.0f);
  EXPECT_EQ(Float16ToFloat(halves[0]), 2.5f);
  uint16_t brains[] = {FloatToBFloat16(10.0f)};
  DivideBFloat16(brains, 1, 4.0f);
  float widened;
  WidenBFloat16(brains, &widened, 1);
  EXPECT_EQ(widened, 2.5f);
}

}  // namespace
}  // namespace coxswain
