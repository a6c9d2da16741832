#include "hooks/kernels/gram_schmidt.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace coxswain {
namespace {

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

template <typename T>
int64_t AllColumns(T* a, int64_t n, int64_t r, double epsilon) {
  int64_t zeros = 0;
  for (int64_t k = 0; k < r; ++k) {
    if (OrthogonaliseColumn(a, n, k, epsilon)) continue;
    std::fill(a + k * n, a + (k + 1) * n, T{0});
    ++zeros;
  }
  return zeros;
}

}  // namespace

int64_t GramSchmidt(float* a, int64_t n, int64_t r, double epsilon) {
  return AllColumns(a, n, r, epsilon);
}
int64_t GramSchmidt(double* a, int64_t n, int64_t r, double epsilon) {
  return AllColumns(a, n, r, epsilon);
}

}  // namespace coxswain
