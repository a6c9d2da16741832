#ifndef COXSWAIN_HOOKS_KERNELS_QUANTISE_H_
#define COXSWAIN_HOOKS_KERNELS_QUANTISE_H_

#include <cstdint>
#include <vector>

#include "client/device/tensor.h"

// Block-wise quantisation to int8, each element crossing the memory bus once.
//
// A block of `size` elements (1 to kMaxQuantisedBlock) travels as 4 + size
// bytes: its scale, a float32, then a code from -127 to 127 per element. Of a
// block whose largest magnitude is a,
//   scale = float32(a / 127), or 0 if that is below the normal numbers
//   code  = x * (1 / scale), rounded to nearest even; 0 if the scale is 0
// and an element is worth code * scale. If an element is infinite or NaN, or
// 127 * scale overflows, the scale is NaN and all codes are 0. Elements that a
// last block lacks count as zeros.
//
// T is float or double, the type computed in. Every result is a fixed function
// of the inputs, whatever the instruction set, alignment or number of threads.
// Arrays do not overlap unless noted; no alignment needed.

namespace coxswain {

constexpr int64_t kMaxQuantisedBlock = 4096;

inline int64_t QuantisedBytes(int64_t blocks, int64_t size) {
  return blocks * (size + 4);
}

// X = gradient + error, of which what quantisation leaves out is
// `remainder` = X - code * scale: exact, but for the rounding of the product in
// float. Undefined, yet written, where the scale is NaN. A gradient has the
// type T, or float16 or bfloat16 if T is float.
template <typename T>
struct QuantiseRun {
  const void* gradient = nullptr;
  DType type = DType::kFloat32;
  const T* error = nullptr;  // null for zero
  T* remainder = nullptr;    // null if it is not to be kept
  int64_t count = 0;
};

// Quantises the runs, taken one after the other, to `blocks` blocks, which
// they must fit into.
template <typename T>
void Quantise(const std::vector<QuantiseRun<T>>& runs, int64_t size,
              int64_t blocks, uint8_t* out);

// The same for the mean of `ranks` quantised arrays: in place of their
// gradient, which is null, runs take the sum over r, in order, of the blocks at
// `in` + r * stride bytes, divided by `ranks`.
template <typename T>
void QuantiseMean(const uint8_t* in, int64_t stride, int ranks,
                  const std::vector<QuantiseRun<T>>& runs, int64_t size,
                  int64_t blocks, uint8_t* out);

// out[i] = element i, for the first `count` elements. `type` is float32,
// float16 or bfloat16 (computed in float), or float64 (in double).
void Dequantise(const uint8_t* in, int64_t size, int64_t count, void* out,
                DType type);

// Returns whether no block's scale is NaN.
bool QuantisedIsFinite(const uint8_t* in, int64_t size, int64_t blocks);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_QUANTISE_H_
