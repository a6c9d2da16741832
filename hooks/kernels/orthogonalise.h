#ifndef COXSWAIN_HOOKS_KERNELS_ORTHOGONALISE_H_
#define COXSWAIN_HOOKS_KERNELS_ORTHOGONALISE_H_

#include <cstdint>
#include <vector>

namespace coxswain {

enum class Orthogonalisation {
  // Cholesky, but Gram-Schmidt for one or two columns if there is an epsilon.
  kAuto,
  kCholeskyQr2,  // falls back to Gram-Schmidt where Cholesky breaks down
  kGramSchmidt   // modified, with a second pass, sums in double
};

// A matrix of n rows and r columns, stored by columns, to be changed in place.
// Normally n >= r; otherwise the columns beyond n come out as zero.
template <typename T>
struct TallMatrix {
  T* a = nullptr;
  int64_t n = 0;
  int64_t r = 0;
};

// Makes the columns of each matrix orthonormal, spanning what they spanned
// from left to right. `epsilon` is added to each norm before the division (by
// Gram-Schmidt only). A column of which nothing but rounding remains (zero, or
// in the span of those before it) becomes zero, as does one that is not
// finite; never NaN. Orthonormal to some 1e-7 in float, 1e-15 in double.
// Returns how many columns became zero, by matrix. Results are a fixed function
// of each matrix alone (see low_rank.h).
template <typename T>
std::vector<int64_t> Orthogonalise(const std::vector<TallMatrix<T>>& matrices,
                                   Orthogonalisation method, double epsilon);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_ORTHOGONALISE_H_
