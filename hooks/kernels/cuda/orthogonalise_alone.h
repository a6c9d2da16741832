#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_ALONE_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_ALONE_H_

#include <cstdint>

#include "base/host_device.h"
#include "hooks/kernels/cuda/orthogonalise.h"
#include "hooks/kernels/cuda/orthogonalise_access.h"
#include "hooks/kernels/cuda/orthogonalise_schmidt.h"

namespace coxswain {

// Schmidt (orthogonalise_schmidt.h) of any number of columns, by one thread:
// for ranks that nobody should ask for.
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

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_ALONE_H_
