#ifndef COXSWAIN_CLIENT_COMM_TWO_LEVEL_HALF_FLOATS_H_
#define COXSWAIN_CLIENT_COMM_TWO_LEVEL_HALF_FLOATS_H_

#include "client/device/tensor.h"

namespace coxswain {

// Returns whether elements of this type are added up in 32 bits.
bool IsHalfFloat(DType dtype);

// Convert equally many elements between a half float and float32; narrowing
// rounds to nearest even. The spans do not overlap.
void Widen(const Span& halves, const Span& floats);
void Narrow(const Span& floats, const Span& halves);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TWO_LEVEL_HALF_FLOATS_H_
