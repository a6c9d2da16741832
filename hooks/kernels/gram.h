#ifndef COXSWAIN_HOOKS_KERNELS_GRAM_H_
#define COXSWAIN_HOOKS_KERNELS_GRAM_H_

#include <cstdint>

// The two passes of Cholesky orthogonalisation over a tall matrix A, n x r,
// stored by columns. Computed in double, compiled for each instruction set.
// Used by orthogonalise.cc only.

namespace coxswain {

// gram[i * r + j] = the sum of A(., i) * A(., j), for i <= j; order of the
// sums as in vectors-inl.h.
void Gram(const float* a, int64_t n, int64_t r, double* gram);
void Gram(const double* a, int64_t n, int64_t r, double* gram);

// A = A U, where U (r x r, by rows) is upper triangular.
void MultiplyUpper(float* a, int64_t n, int64_t r, const double* u);
void MultiplyUpper(double* a, int64_t n, int64_t r, const double* u);

// The same in float, at several times the speed, for at most kFastColumns
// columns of moderate length and condition (orthogonalise.cc checks). Each of
// 16 partial sums adds up 8 rows, 8 such sums in float, and those in double.
constexpr int64_t kFastColumns = 4;
void FastGram(const float* a, int64_t n, int64_t r, double* gram);
void FastMultiplyUpper(float* a, int64_t n, int64_t r, const double* u);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_GRAM_H_
