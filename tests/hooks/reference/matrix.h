#ifndef COXSWAIN_TESTS_HOOKS_REFERENCE_MATRIX_H_
#define COXSWAIN_TESTS_HOOKS_REFERENCE_MATRIX_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace coxswain {
namespace reference {

// Textbook matrices of doubles, for references: plain loops, in no hurry, and
// nothing in common with hooks/kernels.
struct Matrix {
  size_t rows = 0;
  size_t columns = 0;
  std::vector<double> values;  // by rows

  Matrix() = default;
  Matrix(size_t n, size_t m) : rows(n), columns(m), values(n * m, 0.0) {}
  Matrix(size_t n, size_t m, std::vector<double> all)
      : rows(n), columns(m), values(std::move(all)) {}

  bool empty() const { return values.empty(); }
  double& at(size_t i, size_t j) { return values[i * columns + j]; }
  double at(size_t i, size_t j) const { return values[i * columns + j]; }
};

Matrix Transposed(const Matrix& a);
Matrix Times(const Matrix& a, const Matrix& b);
// Returns a + scale * b; an empty matrix counts as zero.
Matrix Plus(const Matrix& a, const Matrix& b, double scale = 1);
// Returns the mean of matrices of equal shapes.
Matrix MeanOf(const std::vector<Matrix>& all);
double Norm(const Matrix& a);

// Returns orthonormal columns with the span of a's, from left to right, by
// Gram-Schmidt, each against all before it, twice. `epsilon` is added to each
// norm. A column in the span of those before becomes zero.
Matrix Orthonormal(const Matrix& a, double epsilon = 0);

}  // namespace reference
}  // namespace coxswain

#endif  // COXSWAIN_TESTS_HOOKS_REFERENCE_MATRIX_H_
