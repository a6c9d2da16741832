#ifndef COXSWAIN_HOOKS_KERNELS_GRAM_SCHMIDT_H_
#define COXSWAIN_HOOKS_KERNELS_GRAM_SCHMIDT_H_

#include <cstdint>

namespace coxswain {

// Orthogonalise (orthogonalise.h) of one matrix by modified Gram-Schmidt with
// a second pass and sums in double; returns how many columns became zero. For
// any input; used by orthogonalise.cc only.
int64_t GramSchmidt(float* a, int64_t n, int64_t r, double epsilon);
int64_t GramSchmidt(double* a, int64_t n, int64_t r, double epsilon);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_GRAM_SCHMIDT_H_
