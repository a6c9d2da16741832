#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_SCHMIDT_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_SCHMIDT_H_

#include <math.h>

#include <cstdint>
#include <limits>

#include "base/host_device.h"
#include "hooks/kernels/cuda/low_rank_block_sums.h"
#include "hooks/kernels/cuda/orthogonalise.h"
#include "hooks/kernels/cuda/orthogonalise_access.h"

// Gram-Schmidt of a whole matrix by one block, for any input: a column is
// freed of those before it, twice, with sums in double.

namespace coxswain {

// What may remain of a column that lies in the span of others: some rounding
// errors of its length.
template <typename T>
constexpr double kSchmidtRemainder = 16.0 * std::numeric_limits<T>::epsilon();
// Columns whose exponents are larger are brought near 1.
constexpr int kHarmlessExponent = 60;
constexpr double kNotFinite = std::numeric_limits<double>::infinity();

// The power of two to take out of a column whose largest magnitude that is.
COXSWAIN_HOST_DEVICE inline int ExponentToTakeOut(double largest) {
  const int exponent = largest > 0 ? ilogb(largest) : 0;
  return exponent > kHarmlessExponent || exponent < -kHarmlessExponent
             ? exponent
             : 0;
}
template <typename T>
COXSWAIN_HOST_DEVICE T ScaledDown(T value, int taken) {
  return static_cast<T>(ldexp(static_cast<double>(value), -taken));
}

struct SchmidtShared {
  static constexpr int kRuns = 16;
  double partial[kLowRankThreads];    // of lengths
  double dots[kLowRankThreads];       // of products with columns before
  double lengths[kRuns];              // partial, in runs
  double before[kRuns];               // the squared length at first
  double sums[kLowRankThreads];       // dots, in runs
  uint8_t zero[kMostSchmidtColumns];  // columns that became so
  bool any_zero;
  int taken;  // a power of two, out of the column
};

// The stages of a column, with a barrier after each. In all of them a thread
// has the same rows; only the products read those of others.
template <typename T>
class Schmidt {
 public:
  static constexpr int kStages = 11;
  static constexpr int kThreads = kLowRankThreads;
  using Shared = SchmidtShared;

  COXSWAIN_HOST_DEVICE Schmidt(const DeviceTallMatrix<T>& matrix,
                               const TallDraws& draws, const T* source,
                               int thread, Shared* shared)
      : matrix_(matrix),
        draws_(draws),
        source_(source),
        thread_(thread),
        shared_(*shared) {}

  // `round` 1: once more, with the columns that became zero drawn.
  COXSWAIN_HOST_DEVICE void Run(int round, int c, int stage) {
    if (c >= matrix_.r) return;
    if (round == 1 && (matrix_.redraw == 0 || !shared_.any_zero)) return;
    T* const column = matrix_.to + c * matrix_.n;
    switch (stage) {
      case 0:
        return Fetch(round, c, column);
      case 1:
        return LargestOfRuns();
      case 2:
        return Scale(column);
      case 3:
        SumRuns(shared_.partial, SchmidtShared::kRuns, shared_.before);
        return Multiply(c, column);
      case 4:
      case 7:
        return SumDots(c);
      case 5:
        return Remove(c, column);
      case 6:
        return Multiply(c, column);
      case 8:
        Remove(c, column);
        shared_.partial[thread_] = Squares(column);
        return;
      case 9:
        return SumRuns(shared_.partial, SchmidtShared::kRuns, shared_.lengths);
      default:
        return Divide(round, c, column);
    }
  }

 private:
  // Threads for each of c products, a power of two.
  static COXSWAIN_HOST_DEVICE int LanesOf(int c) {
    int lanes = kThreads;
    while (lanes > 1 && kThreads / lanes < c) lanes /= 2;
    return lanes;
  }
  static COXSWAIN_HOST_DEVICE int RunOf(int lanes) {
    return lanes < SchmidtShared::kRuns ? lanes : SchmidtShared::kRuns;
  }

  // Brings the column to where it belongs, and notes its largest magnitude.
  COXSWAIN_HOST_DEVICE void Fetch(int round, int c, T* column) {
    const bool drawn = round == 0 ? source_ == nullptr : shared_.zero[c] != 0;
    double largest = 0;
    for (int64_t i = thread_; i < matrix_.n; i += kThreads) {
      if (drawn) {
        column[i] = draws_.At(matrix_, i, c);
      } else if (round == 0) {
        column[i] = source_[c * matrix_.n + i];
      }
      const double size = fabs(static_cast<double>(column[i]));
      if (!(size <= largest)) largest = size < kNotFinite ? size : kNotFinite;
    }
    shared_.partial[thread_] = largest;
  }

  COXSWAIN_HOST_DEVICE void LargestOfRuns() {
    if (thread_ >= SchmidtShared::kRuns) return;
    double largest = 0;
    for (int i = 0; i < kThreads / SchmidtShared::kRuns; ++i) {
      const double size =
          shared_.partial[thread_ * (kThreads / SchmidtShared::kRuns) + i];
      if (size > largest) largest = size;
    }
    shared_.lengths[thread_] = largest;
  }

  // The power of two that is taken out of the column; all threads find the
  // same. A column without direction becomes zero.
  COXSWAIN_HOST_DEVICE void Scale(T* column) {
    double largest = 0;
    for (const double size : shared_.lengths) {
      if (size > largest) largest = size;
    }
    const bool finite = largest < kNotFinite;
    const int taken = finite ? ExponentToTakeOut(largest) : 0;
    if (!finite || taken != 0) {
      for (int64_t i = thread_; i < matrix_.n; i += kThreads) {
        column[i] = finite ? ScaledDown(column[i], taken) : T{0};
      }
    }
    if (thread_ == 0) shared_.taken = taken;
    shared_.partial[thread_] = Squares(column);
  }
  COXSWAIN_HOST_DEVICE double Squares(const T* column) const {
    double sum = 0;
    for (int64_t i = thread_; i < matrix_.n; i += kThreads) {
      const auto value = static_cast<double>(column[i]);
      sum += value * value;
    }
    return sum;
  }

  COXSWAIN_HOST_DEVICE void SumRuns(const double* from, int runs, double* to) {
    if (thread_ >= runs) return;
    const int run = kThreads / runs;
    double sum = 0;
    for (int i = 0; i < run; ++i) sum += from[thread_ * run + i];
    to[thread_] = sum;
  }
  static COXSWAIN_HOST_DEVICE double Total(const double* runs) {
    double sum = 0;
    for (int i = 0; i < SchmidtShared::kRuns; ++i) sum += runs[i];
    return sum;
  }

  COXSWAIN_HOST_DEVICE void Multiply(int c, const T* column) {
    const int lanes = LanesOf(c);
    const int other = thread_ / lanes;
    double sum = 0;
    if (other < c) {
      const T* const basis = matrix_.to + other * matrix_.n;
      for (int64_t i = thread_ % lanes; i < matrix_.n; i += lanes) {
        sum += static_cast<double>(basis[i]) * static_cast<double>(column[i]);
      }
    }
    shared_.dots[thread_] = sum;
  }
  COXSWAIN_HOST_DEVICE void SumDots(int c) {
    SumRuns(shared_.dots, kThreads / RunOf(LanesOf(c)), shared_.sums);
  }
  COXSWAIN_HOST_DEVICE void Remove(int c, T* column) {
    const int runs = LanesOf(c) / RunOf(LanesOf(c));
    for (int other = 0; other < c; ++other) {
      double along = 0;
      for (int i = 0; i < runs; ++i) along += shared_.sums[other * runs + i];
      const T* const basis = matrix_.to + other * matrix_.n;
      for (int64_t i = thread_; i < matrix_.n; i += kThreads) {
        column[i] = static_cast<T>(static_cast<double>(column[i]) -
                                   along * static_cast<double>(basis[i]));
      }
    }
  }

  COXSWAIN_HOST_DEVICE void Divide(int round, int c, T* column) {
    const double before = sqrt(Total(shared_.before));
    const double norm = sqrt(Total(shared_.lengths));
    const bool kept = norm > kSchmidtRemainder<T> * before;
    const double divisor = norm + ldexp(matrix_.epsilon, -shared_.taken);
    for (int64_t i = thread_; i < matrix_.n; i += kThreads) {
      column[i] = kept
                      ? static_cast<T>(static_cast<double>(column[i]) / divisor)
                      : T{0};
    }
    if (thread_ != 0 || round != 0) return;
    shared_.zero[c] = kept ? 0 : 1;
    shared_.any_zero = (c > 0 && shared_.any_zero) || !kept;
  }

  const DeviceTallMatrix<T>& matrix_;
  const TallDraws& draws_;
  const T* const source_;
  const int thread_;
  Shared& shared_;
};

// Schmidt (orthogonalise_schmidt.h) of any number of columns, by one thread:
// for ranks that are too large to be useful.
template <typename T>
class SchmidtAlone {
 public:
  COXSWAIN_HOST_DEVICE SchmidtAlone(const DeviceTallMatrix<T>& matrix,
                                    const TallDraws& draws)
      : matrix_(matrix), draws_(draws) {}

  COXSWAIN_HOST_DEVICE void Run(const T* source) {
    bool any_zero = false;
    for (int64_t c = 0; c < matrix_.r; ++c) {
      for (int64_t i = 0; i < matrix_.n; ++i) {
        Column(c)[i] = source == nullptr ? draws_.At(matrix_, i, c)
                                         : source[c * matrix_.n + i];
      }
      any_zero |= !Orthogonalise(c);
    }
    if (!any_zero || matrix_.redraw == 0) return;
    for (int64_t c = 0; c < matrix_.r; ++c) {
      if (Dot(Column(c), Column(c)) == 0) {
        for (int64_t i = 0; i < matrix_.n; ++i) {
          Column(c)[i] = draws_.At(matrix_, i, c);
        }
      }
      Orthogonalise(c);
    }
  }

 private:
  COXSWAIN_HOST_DEVICE T* Column(int64_t c) const {
    return matrix_.to + c * matrix_.n;
  }
  COXSWAIN_HOST_DEVICE double Dot(const T* a, const T* b) const {
    double sum = 0;
    for (int64_t i = 0; i < matrix_.n; ++i) {
      sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    return sum;
  }

  // False if the column became zero.
  COXSWAIN_HOST_DEVICE bool Orthogonalise(int64_t c) const {
    T* const column = Column(c);
    const int taken = TakeOutExponent(column);
    const double before = sqrt(Dot(column, column));
    for (int turn = 0; turn < 2; ++turn) {
      for (int64_t other = 0; other < c; ++other) {
        const T* const basis = Column(other);
        const double along = Dot(basis, column);
        for (int64_t i = 0; i < matrix_.n; ++i) {
          column[i] = static_cast<T>(static_cast<double>(column[i]) -
                                     along * static_cast<double>(basis[i]));
        }
      }
    }
    const double norm = sqrt(Dot(column, column));
    const bool kept = norm > kSchmidtRemainder<T> * before;
    const double divisor = norm + ldexp(matrix_.epsilon, -taken);
    for (int64_t i = 0; i < matrix_.n; ++i) {
      column[i] = kept
                      ? static_cast<T>(static_cast<double>(column[i]) / divisor)
                      : T{0};
    }
    return kept;
  }

  // As Schmidt::Scale.
  COXSWAIN_HOST_DEVICE int TakeOutExponent(T* column) const {
    double largest = 0;
    for (int64_t i = 0; i < matrix_.n; ++i) {
      const double size = fabs(static_cast<double>(column[i]));
      if (!(size <= largest)) largest = size < kNotFinite ? size : kNotFinite;
    }
    const bool finite = largest < kNotFinite;
    const int taken = finite ? ExponentToTakeOut(largest) : 0;
    for (int64_t i = 0; i < matrix_.n; ++i) {
      column[i] = finite ? ScaledDown(column[i], taken) : T{0};
    }
    return taken;
  }

  const DeviceTallMatrix<T>& matrix_;
  const TallDraws& draws_;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_SCHMIDT_H_
