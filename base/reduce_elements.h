#ifndef COXSWAIN_BASE_REDUCE_ELEMENTS_H_
#define COXSWAIN_BASE_REDUCE_ELEMENTS_H_

#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"

namespace coxswain {

// The arithmetic of reductions, which the CPU back ends of the workers and the
// coordinator share. Types and operations are those of client/comm; 16-bit
// floats are bit patterns.
enum class ElementType {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt32,
  kInt64,
  kUInt8
};
enum class ElementOp { kSum, kMin, kMax };

size_t SizeOf(ElementType type);  // bytes of one element
// "float32", ...
std::optional<ElementType> ElementTypeFromName(absl::string_view name);

// out[i] = a[i] op b[i] for `count` elements. `out` may be `a` or `b`. Pure.
//
// Integers wrap. 16-bit floats are computed in float and rounded to nearest
// even. A minimum or maximum with a NaN is NaN.
void ReduceElements(ElementType type, ElementOp op, void* out, const void* a,
                    const void* b, size_t count);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_REDUCE_ELEMENTS_H_
