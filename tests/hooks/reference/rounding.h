#ifndef COXSWAIN_TESTS_HOOKS_REFERENCE_ROUNDING_H_
#define COXSWAIN_TESTS_HOOKS_REFERENCE_ROUNDING_H_

#include <vector>

#include "client/device/tensor.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace reference {

// Returns the nearest value that `dtype` has, ties to even; an infinity where
// it is too large. From the definition of the format, not from its bit pattern.
double RoundTo(DType dtype, double value);
Gradients RoundTo(DType dtype, Gradients gradients);
std::vector<Gradients> RoundTo(DType dtype, std::vector<Gradients> all);

// Returns what every rank holds after a step of fp16 or bf16. `wide` is the
// type of the gradients, `narrow` that of what travels; the sum is rounded rank
// by rank. With `shares`, a rank whose share is uneven multiplies by it, in
// float32 at least, whatever the order.
Gradients CastReference(const std::vector<Gradients>& local, DType wide,
                        DType narrow, bool divide_first,
                        const std::vector<double>& shares = {});

}  // namespace reference
}  // namespace coxswain

#endif  // COXSWAIN_TESTS_HOOKS_REFERENCE_ROUNDING_H_
