#include "hooks/kernels/orthogonalise.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <vector>

#include "hooks/kernels/gram.h"
#include "hooks/kernels/parallel.h"

namespace coxswain {
namespace {

// Squares of norms between which sums of squares are exact enough.
struct SquareRange {
  double smallest, largest;
};

// Cholesky's G = R'R of the Gram matrix G of r columns, and U = R^-1, all
// r x r by rows. kColumns is r, or 0 where r is known at run time only.
template <int64_t kColumns>
class Factors {
 public:
  explicit Factors(int64_t r = kColumns) : r_(r) {
    if constexpr (kColumns == 0) {
      reciprocals_.resize(Index(r));
      for (Square* square : {&gram_, &upper_, &inverse_}) {
        square->resize(Index(r * r));
      }
    }
  }

  // The upper triangle of G, to be filled in before Factorise.
  double* gram() { return gram_.data(); }
  // The upper triangle of U.
  const double* inverse() const { return inverse_.data(); }
  // The square of a bound of the condition of the columns, each scaled to
  // length 1.
  double squared_condition() const { return squared_condition_; }

  // False where the squares are out of range or the condition may exceed the
  // largest one.
  bool Factorise(const SquareRange& squares, double largest_condition) {
    const double largest = largest_condition * largest_condition;
    if (!IsInRange(squares) || !Cholesky(1 / largest)) return false;
    Invert();
    // Columns of length 1 make the norm of R sqrt(r); what scales R'R scales
    // the rows of U inversely.
    double norm = 0;
    for (int64_t i = 0; i < r(); ++i) {
      double row = 0;
      for (int64_t j = i; j < r(); ++j) {
        row += inverse_[At(i, j)] * inverse_[At(i, j)];
      }
      norm += row * gram_[At(i, i)];
    }
    squared_condition_ = norm * static_cast<double>(r());
    return squared_condition_ <= largest;
  }

 private:
  static constexpr auto kSize = static_cast<size_t>(kColumns);
  using Row = std::conditional_t<kColumns == 0, std::vector<double>,
                                 std::array<double, kSize>>;
  using Square = std::conditional_t<kColumns == 0, std::vector<double>,
                                    std::array<double, kSize * kSize>>;

  // Known to the compiler if kColumns is.
  int64_t r() const { return kColumns == 0 ? r_ : kColumns; }
  size_t At(int64_t i, int64_t j) const { return Index(i * r() + j); }
  static size_t Index(int64_t i) { return static_cast<size_t>(i); }

  // Written so that a NaN fails, here and below.
  bool IsInRange(const SquareRange& squares) const {
    bool in_range = true;
    for (int64_t i = 0; i < r(); ++i) {
      const double square = gram_[At(i, i)];
      in_range &= square >= squares.smallest && square <= squares.largest;
    }
    return in_range;
  }

  // False where less than the `smallest` part of a column is left.
  bool Cholesky(double smallest) {
    bool safe = true;
    for (int64_t i = 0; i < r(); ++i) {
      for (int64_t j = i; j < r(); ++j) {
        double rest = gram_[At(i, j)];
        for (int64_t k = 0; k < i; ++k) {
          rest -= upper_[At(k, i)] * upper_[At(k, j)];
        }
        if (i == j) {
          safe &= rest > smallest * gram_[At(i, i)];
          // 1 / sqrt(rest), without one waiting for the other.
          reciprocals_[Index(i)] = std::sqrt(rest) * (1 / rest);
        }
        upper_[At(i, j)] = rest * reciprocals_[Index(i)];
      }
    }
    return safe;
  }

  void Invert() {
    for (int64_t j = 0; j < r(); ++j) {
      inverse_[At(j, j)] = reciprocals_[Index(j)];
      for (int64_t i = j - 1; i >= 0; --i) {
        double sum = 0;
        for (int64_t k = i + 1; k <= j; ++k) {
          sum += upper_[At(i, k)] * inverse_[At(k, j)];
        }
        inverse_[At(i, j)] = -sum * reciprocals_[Index(i)];
      }
    }
  }

  const int64_t r_;
  Row reciprocals_;  // of R's diagonal
  Square gram_, upper_, inverse_;
  double squared_condition_ = 0;
};

// Partial sums that are kept apart, so that the compiler may use vectors
// without changing the order of summation.
constexpr int64_t kPartialSums = 16;

template <typename T>
double Dot(const T* a, const T* b, int64_t count) {
  double sums[kPartialSums] = {};
  const int64_t whole = count - count % kPartialSums;
  for (int64_t i = 0; i < whole; i += kPartialSums) {
    for (int64_t k = 0; k < kPartialSums; ++k) {
      sums[k] += double{a[i + k]} * double{b[i + k]};
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    sums[i - whole] += double{a[i]} * double{b[i]};
  }
  for (int64_t width = kPartialSums / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
}

// The exponent of the largest magnitude; false if there is none, or a value
// that is not finite.
template <typename T>
bool ExponentOf(const T* column, int64_t n, int* exponent) {
  T largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    finite = finite && std::isfinite(column[i]);
    largest = std::max(largest, std::fabs(column[i]));
  }
  if (!finite || largest == 0) return false;
  *exponent = std::ilogb(largest);
  return true;
}

// Brings a column of tiny or huge numbers near 1, where nothing is lost to
// denormals or squares. Returns the power of two that was taken out.
template <typename T>
int TakeOutExponent(T* column, int64_t n, int exponent) {
  constexpr int kHarmless = 60;
  if (std::abs(exponent) <= kHarmless) return 0;
  for (int64_t i = 0; i < n; ++i) {
    column[i] = std::scalbn(column[i], -exponent);
  }
  return exponent;
}

// Takes from `column` its parts along the `k` orthonormal columns of `a`.
template <typename T>
void RemoveSpan(const T* a, T* column, int64_t n, int64_t k) {
  for (int64_t i = 0; i < k; ++i) {
    const T* basis = a + i * n;
    const double along = Dot(basis, column, n);
    for (int64_t j = 0; j < n; ++j) {
      column[j] = static_cast<T>(column[j] - along * basis[j]);
    }
  }
}

// What may remain of a column that lies in the span of others: some rounding
// errors of its length.
template <typename T>
constexpr double kRemainder = 16.0 * std::numeric_limits<T>::epsilon();

// A second pass restores the orthogonality that cancellation in the first one
// cost. False if nothing of the column is left.
template <typename T>
bool OrthogonaliseColumn(T* a, int64_t n, int64_t k, double epsilon) {
  T* column = a + k * n;
  int exponent = 0;
  if (!ExponentOf(column, n, &exponent)) return false;
  const int taken = TakeOutExponent(column, n, exponent);
  const double before = std::sqrt(Dot(column, column, n));
  RemoveSpan(a, column, n, k);
  RemoveSpan(a, column, n, k);
  const double norm = std::sqrt(Dot(column, column, n));
  if (!(norm > kRemainder<T> * before)) return false;
  const double divisor = norm + std::scalbn(epsilon, -taken);
  for (int64_t j = 0; j < n; ++j) {
    column[j] = static_cast<T>(column[j] / divisor);
  }
  return true;
}

// Orthogonalise of one matrix by modified Gram-Schmidt with a second pass and
// sums in double; returns how many columns became zero. For any input.
template <typename T>
int64_t GramSchmidt(T* a, int64_t n, int64_t r, double epsilon) {
  int64_t zeros = 0;
  for (int64_t k = 0; k < r; ++k) {
    if (OrthogonaliseColumn(a, n, k, epsilon)) continue;
    std::fill(a + k * n, a + (k + 1) * n, T{0});
    ++zeros;
  }
  return zeros;
}

constexpr SquareRange kSquaresInDouble = {1e-250, 1e250};
constexpr SquareRange kSquaresInFloat = {1e-24, 1e30};

// Up to this condition of the scaled columns two rounds of Cholesky are safe
// in double for tens of thousands of rows (a bound of 1 / (8 sqrt(n r u)), u
// being the rounding error); beyond it Gram-Schmidt decides what is left.
constexpr double kLargestCondition = 1e4;

// Up to this bound of the condition one round in float leaves columns that are
// orthonormal to some 1e-7: float's own rounding, times the condition.
constexpr double kLargestFastCondition = 16;

// Returns whether one round leaves less than the rounding of T: the error of
// the Gram matrix (n / 8 additions in each partial sum) times the condition
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
