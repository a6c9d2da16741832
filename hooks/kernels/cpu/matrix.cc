#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hooks/kernels/kernels.h"

namespace coxswain {
namespace {

// Partial sums that are kept apart, so that the compiler may use vectors
// without changing the order of summation.
constexpr int kLanes = 16;

// Sum of a[i] * b[i] in the type Sum.
template <typename Sum, typename T>
Sum Dot(const T* a, const T* b, int64_t count) {
  Sum lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] +=
          static_cast<Sum>(a[i + lane]) * static_cast<Sum>(b[i + lane]);
    }
  }
  for (int lane = 0; i + lane < count; ++lane) {
    lanes[lane] +=
        static_cast<Sum>(a[i + lane]) * static_cast<Sum>(b[i + lane]);
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <typename T>
void ProjectRows(const T* x, const T* q, T* p, int64_t n, int64_t m,
                 int64_t r) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < r; ++k) {
      p[k * n + i] = Dot<T>(x + i * m, q + k * m, m);
    }
  }
}

// Four rows at a time, which reads and writes Q a quarter as often.
template <typename T>
void ProjectColumns(const T* x, const T* p, T* q, int64_t n, int64_t m,
                    int64_t r) {
  std::fill(q, q + m * r, T{0});
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const T* rows = x + i * m;
    for (int64_t k = 0; k < r; ++k) {
      const T* weights = p + k * n + i;
      const T w0 = weights[0], w1 = weights[1];
      const T w2 = weights[2], w3 = weights[3];
      T* out = q + k * m;
      for (int64_t j = 0; j < m; ++j) {
        out[j] += (w0 * rows[j] + w1 * rows[m + j]) +
                  (w2 * rows[2 * m + j] + w3 * rows[3 * m + j]);
      }
    }
  }
  for (; i < n; ++i) {
    for (int64_t k = 0; k < r; ++k) {
      const T weight = p[k * n + i];
      for (int64_t j = 0; j < m; ++j) q[k * m + j] += weight * x[i * m + j];
    }
  }
}

// X += sign * P transpose(Q), four columns of the factors at a time.
template <typename T>
void AddProduct(T* x, const T* p, const T* q, int64_t n, int64_t m, int64_t r,
                T sign) {
  for (int64_t i = 0; i < n; ++i) {
    T* row = x + i * m;
    int64_t k = 0;
    for (; k + 4 <= r; k += 4) {
      const T w0 = sign * p[k * n + i], w1 = sign * p[(k + 1) * n + i];
      const T w2 = sign * p[(k + 2) * n + i], w3 = sign * p[(k + 3) * n + i];
      const T* in = q + k * m;
      for (int64_t j = 0; j < m; ++j) {
        row[j] += (w0 * in[j] + w1 * in[m + j]) +
                  (w2 * in[2 * m + j] + w3 * in[3 * m + j]);
      }
    }
    for (; k < r; ++k) {
      const T weight = sign * p[k * n + i];
      for (int64_t j = 0; j < m; ++j) row[j] += weight * q[k * m + j];
    }
  }
}

template <typename T>
double Norm(const T* column, int64_t n) {
  return std::sqrt(Dot<double>(column, column, n));
}

// Takes from `column` its parts along the `k` orthonormal columns of `a`.
template <typename T>
void RemoveSpan(const T* a, T* column, int64_t n, int64_t k) {
  for (int64_t i = 0; i < k; ++i) {
    const T* basis = a + i * n;
    const double along = Dot<double>(basis, column, n);
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
  const double before = Norm(column, n);
  RemoveSpan(a, column, n, k);
  RemoveSpan(a, column, n, k);
  const double norm = Norm(column, n);
  // Written so that a NaN fails.
  const bool left = std::isfinite(before) && norm > kRemainder<T> * before;
  if (!left) return false;
  for (int64_t j = 0; j < n; ++j) {
    column[j] = static_cast<T>(column[j] / (norm + epsilon));
  }
  return true;
}

template <typename T>
int64_t OrthogonaliseAll(T* a, int64_t n, int64_t r, double epsilon) {
  int64_t zeros = 0;
  for (int64_t k = 0; k < r; ++k) {
    if (OrthogonaliseColumn(a, n, k, epsilon)) continue;
    std::fill(a + k * n, a + (k + 1) * n, T{0});
    ++zeros;
  }
  return zeros;
}

}  // namespace

void Project(const float* x, const float* q, float* p, int64_t n, int64_t m,
             int64_t r) {
  ProjectRows(x, q, p, n, m, r);
}
void Project(const double* x, const double* q, double* p, int64_t n, int64_t m,
             int64_t r) {
  ProjectRows(x, q, p, n, m, r);
}
void ProjectTransposed(const float* x, const float* p, float* q, int64_t n,
                       int64_t m, int64_t r) {
  ProjectColumns(x, p, q, n, m, r);
}
void ProjectTransposed(const double* x, const double* p, double* q, int64_t n,
                       int64_t m, int64_t r) {
  ProjectColumns(x, p, q, n, m, r);
}
void SubtractProduct(float* x, const float* p, const float* q, int64_t n,
                     int64_t m, int64_t r) {
  AddProduct(x, p, q, n, m, r, -1.0f);
}
void SubtractProduct(double* x, const double* p, const double* q, int64_t n,
                     int64_t m, int64_t r) {
  AddProduct(x, p, q, n, m, r, -1.0);
}
void Product(float* x, const float* p, const float* q, int64_t n, int64_t m,
             int64_t r) {
  std::fill(x, x + n * m, 0.0f);
  AddProduct(x, p, q, n, m, r, 1.0f);
}
void Product(double* x, const double* p, const double* q, int64_t n, int64_t m,
             int64_t r) {
  std::fill(x, x + n * m, 0.0);
  AddProduct(x, p, q, n, m, r, 1.0);
}

int64_t Orthogonalise(float* a, int64_t n, int64_t r, double epsilon) {
  return OrthogonaliseAll(a, n, r, epsilon);
}
int64_t Orthogonalise(double* a, int64_t n, int64_t r, double epsilon) {
  return OrthogonaliseAll(a, n, r, epsilon);
}

}  // namespace coxswain
