#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/device/launch.h"

// Orthonormal columns on a GPU, for many tall matrices in two launches: what
// hooks/kernels/orthogonalise.h does, with the same results but for rounding.
// Free of Abseil.
//
// The first launch computes the Gram matrix, in double, of strips of rows; in
// the second one each strip's block adds them up, factorises (a little work,
// done by each) and multiplies its rows. In float one such round leaves less
// than float's rounding up to a condition of 1000; in double there is a second
// round, for which a matrix is one strip. Where that is not good enough, or
// `cholesky` is not set, one block does the whole matrix by Gram-Schmidt, twice
// for each column. More than 32 columns always go that way, and are slow, as
// is everything beyond 256.
//
// All memory is the caller's and on the device. Results are a fixed function of
// each matrix and of whether the largest rank of the list is up to 4, up to 8
// or more, which choose between programs; nothing else of the list counts.

namespace coxswain {

// A matrix of n rows and r columns, stored by columns.
template <typename T>
struct DeviceTallMatrix {
  // Null: drawn, element (j, k) being CounterRandom(seed, stream).Normal(k n +
  // j) (base/random.h) but for rounding; with stream ^ Mix64(*step).
  const T* from = nullptr;
  T* to = nullptr;  // may be `from`
  int64_t n = 0;
  int64_t r = 0;
  uint64_t stream = 0;    // StableHash of the parameter's name
  double epsilon = 0;     // added to norms by Gram-Schmidt
  uint32_t cholesky = 1;  // tries it first
  // Columns that become zero are drawn, and the matrix is orthogonalised again;
  // otherwise they stay zero. Matrices that are drawn have it set.
  uint32_t redraw = 0;
};

struct TallShape {
  int64_t n = 0;
  int64_t r = 0;
};

// A block's rows of a matrix.
struct TallStrip {
  int64_t row = 0;      // the first one
  int64_t rows = 0;     // how many
  int64_t partial = 0;  // where the matrix's Gram matrices stand
  int32_t matrix = 0;
  int32_t strip = 0;  // which of the matrix
  int32_t strips = 0;
  int32_t unused = 0;
};

// A pure function of the shapes. To be uploaded once: `strips`; and room for
// `partials` doubles.
struct TallPlan {
  std::vector<TallStrip> strips;
  int64_t partials = 0;
  int64_t rank = 0;  // the largest
  int64_t rows = 0;  // of the longest strip
};

TallPlan PlanOrthogonalise(const std::vector<TallShape>& matrices,
                           size_t element_bytes);

template <typename T>
struct DeviceTall {
  const TallPlan* plan = nullptr;  // the host's; its vector is not read
  const TallStrip* strips = nullptr;
  const DeviceTallMatrix<T>* matrices = nullptr;  // as planned
  double* partials = nullptr;
  // For what is drawn: the seed, and one number in device memory.
  uint64_t seed = 0;
  const uint64_t* step = nullptr;  // may be null if nothing is drawn
  bool redraws = false;            // whether any matrix may have redraw set
  // If not null and not 0, nothing is done. For P only: before Q it is still
  // that of the last step.
  const uint32_t* poisoned = nullptr;
};

// 2 launches, none without matrices.
template <typename T>
void OrthogonaliseOnDevice(LaunchTarget* target, const DeviceTall<T>& on);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_H_
