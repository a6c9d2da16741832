#ifndef COXSWAIN_CLIENT_COMM_SHM_REDUCE_MANY_H_
#define COXSWAIN_CLIENT_COMM_SHM_REDUCE_MANY_H_

#include <cstdint>
#include <vector>

#include "client/comm/communicator.h"
#include "client/device/tensor.h"

namespace coxswain {

// Computes outputs[k][i] = inputs[0][i] op inputs[1][i] op ..., in this order,
// for all k and `count` elements, so that equal inputs give equal bits on any
// rank. One pass over the memory; an output may be one of the inputs. 16-bit
// floats are summed up in float and rounded once, to nearest even; integers
// wrap; a minimum or maximum with a NaN is NaN. Pure.
//
// With a divisor, of a sum of two or more inputs of a floating-point type, each
// input is divided by it first and rounded to the type.
void ReduceMany(DType dtype, ReduceOp op,
                const std::vector<const char*>& inputs,
                const std::vector<char*>& outputs, int64_t count,
                int divisor = 1);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_REDUCE_MANY_H_
