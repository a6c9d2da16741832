#ifndef COXSWAIN_HOOKS_KERNELS_LOW_RANK_H_
#define COXSWAIN_HOOKS_KERNELS_LOW_RANK_H_

#include <cstdint>
#include <vector>

#include "client/device/tensor.h"

// The matrix arithmetic of the low-rank hooks, fused so that each element of
// a gradient crosses the memory bus as few times as possible, and for all
// matrices of a bucket in one call, which shares them among the threads.
//
// X and gradients are n x m, stored by rows. Factors P (n x r) and Q (m x r)
// are stored by columns, one after the other. T is float or double, the type
// computed in. A gradient or an output has the type T, float16 or bfloat16;
// 16-bit values are widened exactly and narrowed to nearest even.
//
// Every result is a fixed function of its own pass: it depends neither on the
// instruction set nor on alignment nor on the number of threads nor on the
// other passes of the call (docs/adr/0008); the payload of a NaN is not part of
// it. Arrays do not overlap unless noted, and no pass of a call touches what
// another one writes. Any n, m >= 0 and r >= 0; no alignment needed, though
// large outputs at a multiple of 64 bytes are written fastest.

namespace coxswain {

// P transpose(Q) of rank r; nothing if r is 0.
template <typename T>
struct LowRankProduct {
  const T* p = nullptr;
  const T* q = nullptr;
  int64_t r = 0;
};

// One pass over one matrix: X = gradient + previous - product, or X = product
// without a gradient. X goes to `out` and, while it is in the cache, is
// multiplied with `factor`. In float32 that reads 4 + 4 and writes 4 bytes an
// element.
template <typename T>
struct LowRankPass {
  static constexpr DType kOwnType =
      sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;

  const void* gradient = nullptr;
  DType type = kOwnType;        // of the gradient
  const T* previous = nullptr;  // n x m; null: zero
  LowRankProduct<T> product;
  // n x m, may be `gradient` or `previous`; null: X is not kept.
  void* out = nullptr;
  DType out_type = kOwnType;
  const T* factor = nullptr;
  int64_t r = 0;  // columns of factor and result; 0: X is only written
  T* result = nullptr;
  int64_t n = 0;
  int64_t m = 0;
};

// Each pass with factor Q: result P = X Q.
template <typename T>
void PassOverRows(const std::vector<LowRankPass<T>>& passes);

// Each pass with factor P: result Q = transpose(X) P.
template <typename T>
void PassOverColumns(const std::vector<LowRankPass<T>>& passes);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_LOW_RANK_H_
