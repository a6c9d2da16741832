#ifndef COXSWAIN_HOOKS_NARROW_H_
#define COXSWAIN_HOOKS_NARROW_H_

#include <cstdint>

#include "client/device/tensor.h"

namespace coxswain {

// Between spans of float32 or float64 and a 16-bit type (kFloat16 or
// kBFloat16), on the CPU.

inline bool IsWide(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// The type of a T, which is float or double.
template <typename T>
constexpr DType kDTypeOf = sizeof(T) == sizeof(double) ? DType::kFloat64
                                                       : DType::kFloat32;

// Between a span of type T or of 16 bits and T, the type computed in:
// out[i] = in[i], exactly.
template <typename T>
void ReadSpan(const Span& in, T* out);
// out[i] = in[i], rounded to nearest even.
template <typename T>
void WriteSpan(const T* in, const Span& out);

// out[i] = in[i] * factor, multiplied in `in`'s type before it is rounded.
void NarrowSpan(const Span& in, DType to, uint16_t* out, double factor = 1);
// out[i] = in[i], which are of type `from`.
void WidenSpan(const uint16_t* in, DType from, const Span& out);
// values[i] /= divisor.
void DivideNarrow(uint16_t* values, int64_t count, DType dtype, int divisor);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_NARROW_H_
