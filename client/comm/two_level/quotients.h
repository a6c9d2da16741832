#ifndef COXSWAIN_CLIENT_COMM_TWO_LEVEL_QUOTIENTS_H_
#define COXSWAIN_CLIENT_COMM_TWO_LEVEL_QUOTIENTS_H_

#include "client/device/tensor.h"

namespace coxswain {

// Sets `to` to the elements of `from`, divided by `divisor` and rounded to
// their type, which is a floating-point one. They are equally many, in the same
// memory or in other memory.
void DivideInto(const Span& from, int divisor, const Span& to);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TWO_LEVEL_QUOTIENTS_H_
