#ifndef COXSWAIN_CLIENT_COMM_REDUCE_OPS_H_
#define COXSWAIN_CLIENT_COMM_REDUCE_OPS_H_

#include <cstddef>

#include "client/comm/communicator.h"
#include "client/comm/tensor.h"

namespace coxswain {

// out[i] = a[i] op b[i] for `count` elements; what the CPU back ends reduce
// with. `out` may be `a` or `b`. Pure.
//
// Integers wrap. 16-bit floats are computed in float and rounded to nearest
// even. A minimum or maximum with a NaN is NaN.
void Reduce(DType dtype, ReduceOp op, void* out, const void* a, const void* b,
            size_t count);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_REDUCE_OPS_H_
