#ifndef COXSWAIN_HOOKS_KERNELS_LOW_RANK_H_
#define COXSWAIN_HOOKS_KERNELS_LOW_RANK_H_

#include <cstdint>

#include "client/comm/tensor.h"

// The matrix arithmetic of the low-rank hooks, fused so that each element of
// a gradient crosses the memory bus as few times as possible.
//
// X and gradients are n x m, stored by rows. Factors P (n x r) and Q (m x r)
// are stored by columns, one after the other. T is float or double, the type
// computed in. A gradient or an output has the type T, float16 or bfloat16;
// 16-bit values are widened exactly and narrowed to nearest even.
//
// Every result is a fixed function of the inputs: it depends neither on the
// instruction set nor on alignment nor on the number of threads
// (docs/adr/0008); the payload of a NaN is not part of it. Arrays do not
// overlap unless said so. Any n, m >= 0 and r >= 0; no alignment needed, though
// large outputs at a multiple of 64 bytes are written fastest.

namespace coxswain {

// P transpose(Q) of rank r; nothing if r is 0.
template <typename T>
struct LowRankProduct {
  const T* p = nullptr;
  const T* q = nullptr;
  int64_t r = 0;
};

// X = gradient + previous - product, then P = X Q in the same pass.
// `previous` is n x m, null for zero. `x` may be `previous`, or null if X is
// not to be kept. Reads 4 + 4 and writes 4 bytes an element in float32.
template <typename T>
void AccumulateProject(const void* gradient, DType type, const T* previous,
                       const LowRankProduct<T>& product, T* x, const T* q,
                       int64_t r, T* p, int64_t n, int64_t m);

// The same with Q = transpose(X) P.
template <typename T>
void AccumulateProjectTransposed(const void* gradient, DType type,
                                 const T* previous,
                                 const LowRankProduct<T>& product, T* x,
                                 const T* p, int64_t r, T* q, int64_t n,
                                 int64_t m);

// Q = transpose(X) P, of an X of any of the types.
template <typename T>
void ProjectTransposed(const void* x, DType type, const T* p, int64_t r, T* q,
                       int64_t n, int64_t m);

// out = product, n x m of `type`.
template <typename T>
void Reconstruct(const LowRankProduct<T>& product, void* out, DType type,
                 int64_t n, int64_t m);

// out = x - product, in T; `out` may be `x`.
template <typename T>
void SubtractProduct(const T* x, const LowRankProduct<T>& product, T* out,
                     int64_t n, int64_t m);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_LOW_RANK_H_
