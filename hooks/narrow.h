#ifndef COXSWAIN_HOOKS_NARROW_H_
#define COXSWAIN_HOOKS_NARROW_H_

#include <cstdint>

#include "client/comm/tensor.h"

namespace coxswain {

// Between spans of float32 or float64 and a 16-bit type (kFloat16 or
// kBFloat16), on the CPU.

inline bool IsWide(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

// out[i] = in[i] / divisor, divided in `in`'s type before it is rounded.
void NarrowSpan(const Span& in, DType to, uint16_t* out, int divisor = 1);
// out[i] = in[i], which are of type `from`.
void WidenSpan(const uint16_t* in, DType from, const Span& out);
// values[i] /= divisor.
void DivideNarrow(uint16_t* values, int64_t count, DType dtype, int divisor);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_NARROW_H_
