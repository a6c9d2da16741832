#ifndef COXSWAIN_HOOKS_NARROW_WRAPPER_H_
#define COXSWAIN_HOOKS_NARROW_WRAPPER_H_

#include <memory>
#include <string>

#include "client/reduce/hook.h"

namespace coxswain {

// `fp16(h)` and `bf16(h)`: everything that hook h sends travels in 16 bits,
// while h computes and remembers in the type it would use without the
// wrapper. So `fp16(powersgd)` halves P, Q and the raw tensors, and keeps its
// error in float32. The state is h's own, saved under h's spec and in full
// precision: it can be taken over with another wrapper or none.
//
// Cost: h's collectives at 2 bytes an element, and 2 bytes an element of
// scratch while they travel. Numerics: one rounding to 16 bits per collective
// and rank, and the back end's sum in 16 bits; see narrow_communicator.h for
// what fp16 does with large values. The rounding is not fed back as error.
std::unique_ptr<Hook> MakeNarrowWrapper(std::string spec, DType dtype,
                                        std::unique_ptr<Hook> inner);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_NARROW_WRAPPER_H_
