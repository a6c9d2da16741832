#ifndef COXSWAIN_BASE_REDUCE_ELEMENTS_H_
#define COXSWAIN_BASE_REDUCE_ELEMENTS_H_

#include <cstddef>

#include "base/element_type.h"

namespace coxswain {

// The arithmetic of reductions, which the CPU back ends of the workers and the
// coordinator share: out[i] = a[i] op b[i] for `count` elements. `out` may be
// `a` or `b`. Pure.
//
// Integers wrap. 16-bit floats are computed in float and rounded to nearest
// even. A minimum or maximum with a NaN is NaN.
void ReduceElements(ElementType type, ElementOp op, void* out, const void* a,
                    const void* b, size_t count);

// Sums up parts of a mean: out[i] = a[i] + b[i] / divisor or, with `divides_a`,
// a[i] / divisor + b[i] / divisor, for floating-point types. Each quotient is
// rounded to the type before it is added: the same bits as from a division in a
// pass of its own. `divisor` is at least 1.
void AddQuotients(ElementType type, void* out, const void* a, bool divides_a,
                  const void* b, int divisor, size_t count);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_REDUCE_ELEMENTS_H_
