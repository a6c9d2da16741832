#include "hooks/kernels/orthogonalise.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "hooks/kernels/factors.h"
#include "hooks/kernels/gram.h"
#include "hooks/kernels/gram_schmidt.h"
#include "hooks/kernels/parallel.h"

namespace coxswain {
namespace {

constexpr SquareRange kSquaresInDouble = {1e-250, 1e250};
constexpr SquareRange kSquaresInFloat = {1e-24, 1e30};

// Up to this condition of the scaled columns two rounds of Cholesky are safe
// in double for tens of thousands of rows (a bound of 1 / (8 sqrt(n r u)), u
// being the rounding error); beyond it Gram-Schmidt decides what is left.
constexpr double kLargestCondition = 1e4;

// Up to this bound of the condition one round in float leaves columns that are
// orthonormal to some 1e-7: float's own rounding, times the condition.
constexpr double kLargestFastCondition = 16;

// Whether one round leaves less than the rounding of T: the error of the
// Gram matrix (n / 8 additions in each partial sum) times the condition
// squared.
template <typename T>
bool OneRoundIsEnough(double squared_condition, int64_t n, int64_t r) {
  const double rounding = std::numeric_limits<double>::epsilon() / 2;
  const double additions = static_cast<double>(n / 8 + 16);
  const double error =
      squared_condition * additions * static_cast<double>(r) * rounding;
  return error < static_cast<double>(std::numeric_limits<T>::epsilon()) / 16;
}

template <int64_t kColumns>
bool FastCholeskyOf(const TallMatrix<float>& matrix) {
  Factors<kColumns> factors;
  FastGram(matrix.a, matrix.n, kColumns, factors.gram());
  if (!factors.Factorise(kSquaresInFloat, kLargestFastCondition)) return false;
  FastMultiplyUpper(matrix.a, matrix.n, kColumns, factors.inverse());
  return true;
}

// False, and the matrix is as it was, where that is not good enough.
bool FastCholesky(const TallMatrix<float>& matrix) {
  if (matrix.n < matrix.r) return false;
  static_assert(kFastColumns == 4, "a case for each");
  switch (matrix.r) {
    case 1:
      return FastCholeskyOf<1>(matrix);
    case 2:
      return FastCholeskyOf<2>(matrix);
    case 3:
      return FastCholeskyOf<3>(matrix);
    case 4:
      return FastCholeskyOf<4>(matrix);
    default:
      return false;
  }
}
bool FastCholesky(const TallMatrix<double>& /*matrix*/) { return false; }

// False, and the matrix spans what it spanned, where it is not safe.
template <typename T>
bool CholeskyQr2(const TallMatrix<T>& matrix) {
  if (FastCholesky(matrix)) return true;
  if (matrix.n < matrix.r) return false;
  Factors<0> factors(matrix.r);
  for (int round = 0; round < 2; ++round) {
    Gram(matrix.a, matrix.n, matrix.r, factors.gram());
    if (!factors.Factorise(kSquaresInDouble, kLargestCondition)) return false;
    MultiplyUpper(matrix.a, matrix.n, matrix.r, factors.inverse());
    if (OneRoundIsEnough<T>(factors.squared_condition(), matrix.n, matrix.r)) {
      break;
    }
  }
  return true;
}

bool TriesCholesky(Orthogonalisation method, int64_t r, double epsilon) {
  switch (method) {
    case Orthogonalisation::kCholeskyQr2:
      return true;
    case Orthogonalisation::kGramSchmidt:
      return false;
    case Orthogonalisation::kAuto:
      break;
  }
  return r > 2 || epsilon == 0;
}

template <typename T>
int64_t OrthogonaliseOne(const TallMatrix<T>& matrix, Orthogonalisation method,
                         double epsilon) {
  if (TriesCholesky(method, matrix.r, epsilon) && CholeskyQr2(matrix)) return 0;
  return GramSchmidt(matrix.a, matrix.n, matrix.r, epsilon);
}

}  // namespace

template <typename T>
std::vector<int64_t> Orthogonalise(const std::vector<TallMatrix<T>>& matrices,
                                   Orthogonalisation method, double epsilon) {
  std::vector<int64_t> zeros(matrices.size());
  int64_t bytes = 0;
  for (const TallMatrix<T>& matrix : matrices) {
    bytes += matrix.n * matrix.r * static_cast<int64_t>(sizeof(T));
  }
  // The last ones first: they are the likeliest to be in the cache still.
  const auto count = static_cast<int64_t>(matrices.size());
  std::atomic<int64_t> left{count};
  // Twice as slow as memory.
  const int64_t parts = std::min<int64_t>(KernelParts(2 * bytes), count);
  RunParts(static_cast<int>(parts), [&](int) {
    for (int64_t i = --left; i >= 0; i = --left) {
      const auto at = static_cast<size_t>(i);
      zeros[at] = OrthogonaliseOne(matrices[at], method, epsilon);
    }
  });
  return zeros;
}

template std::vector<int64_t> Orthogonalise<float>(
    const std::vector<TallMatrix<float>>&, Orthogonalisation, double);
template std::vector<int64_t> Orthogonalise<double>(
    const std::vector<TallMatrix<double>>&, Orthogonalisation, double);

}  // namespace coxswain
