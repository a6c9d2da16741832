#include "tests/hooks/reference/matrix.h"

#include "gtest/gtest.h"

namespace coxswain {
namespace reference {
namespace {

TEST(MatrixTest, ProductsByHand) {
  const Matrix a(2, 3, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Transposed(a).values, (std::vector<double>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(Times(a, Transposed(a)).values,
            (std::vector<double>{14, 32, 32, 77}));
  EXPECT_EQ(Plus(a, a, -1).values, std::vector<double>(6, 0.0));
  EXPECT_EQ(Plus(Matrix(), a, 2).values[5], 12);
  EXPECT_EQ(MeanOf({a, Plus(Matrix(), a, 3)}).values[0], 2);
  EXPECT_EQ(Norm(Matrix(2, 2, {1, 1, 1, 1})), 2);
}

TEST(MatrixTest, OrthonormalColumnsOfTheSameSpan) {
  const Matrix a(3, 2, {3, 1, 4, 1, 0, 1});
  const Matrix q = Orthonormal(a);
  EXPECT_DOUBLE_EQ(q.at(0, 0), 0.6);
  EXPECT_DOUBLE_EQ(q.at(1, 0), 0.8);
  const Matrix gram = Times(Transposed(q), q);
  EXPECT_NEAR(gram.at(0, 1), 0, 1e-15);
  EXPECT_NEAR(gram.at(1, 1), 1, 1e-15);
  // The projector leaves what was in the span.
  const Matrix projected = Times(q, Times(Transposed(q), a));
  EXPECT_LE(Norm(Plus(projected, a, -1)), 1e-15 * 6);
}

TEST(MatrixTest, AColumnInTheSpanBecomesZero) {
  const Matrix q = Orthonormal(Matrix(2, 2, {1, 2, 1, 2}));
  EXPECT_EQ(q.at(0, 1), 0);
  EXPECT_EQ(q.at(1, 1), 0);
  EXPECT_EQ(Norm(Orthonormal(Matrix(3, 2))), 0);
}

}  // namespace
}  // namespace reference
}  // namespace coxswain
