#include "tests/hooks/reference/matrix.h"

#include <cmath>

namespace coxswain {
namespace reference {
namespace {

// What rounding leaves of a column that lies in the span of others.
constexpr double kRemainder = 1e-13;

double ColumnNorm(const Matrix& a, size_t k) {
  double sum = 0;
  for (size_t i = 0; i < a.rows; ++i) sum += a.at(i, k) * a.at(i, k);
  return std::sqrt(sum);
}

void TakeOut(Matrix& a, size_t basis, size_t k) {
  double along = 0;
  for (size_t i = 0; i < a.rows; ++i) along += a.at(i, basis) * a.at(i, k);
  for (size_t i = 0; i < a.rows; ++i) a.at(i, k) -= along * a.at(i, basis);
}

}  // namespace

Matrix Transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

Matrix Times(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t k = 0; k < a.columns; ++k) {
      for (size_t j = 0; j < b.columns; ++j) {
        c.at(i, j) += a.at(i, k) * b.at(k, j);
      }
    }
  }
  return c;
}

Matrix Plus(const Matrix& a, const Matrix& b, double scale) {
  if (b.empty()) return a;
  Matrix sum = a.empty() ? Matrix(b.rows, b.columns) : a;
  for (size_t i = 0; i < sum.values.size(); ++i) {
    sum.values[i] += scale * b.values[i];
  }
  return sum;
}

Matrix MeanOf(const std::vector<Matrix>& all) {
  Matrix mean;
  for (const Matrix& one : all) {
    mean = Plus(mean, one, 1 / static_cast<double>(all.size()));
  }
  return mean;
}

double Norm(const Matrix& a) {
  double sum = 0;
  for (const double value : a.values) sum += value * value;
  return std::sqrt(sum);
}

Matrix Orthonormal(const Matrix& a, double epsilon) {
  Matrix q = a;
  for (size_t k = 0; k < q.columns; ++k) {
    const double before = ColumnNorm(q, k);
    for (const int pass : {1, 2}) {
      static_cast<void>(pass);
      for (size_t basis = 0; basis < k; ++basis) TakeOut(q, basis, k);
    }
    const double norm = ColumnNorm(q, k);
    const bool left = norm > kRemainder * before;
    for (size_t i = 0; i < q.rows; ++i) {
      q.at(i, k) = left ? q.at(i, k) / (norm + epsilon) : 0;
    }
  }
  return q;
}

}  // namespace reference
}  // namespace coxswain
