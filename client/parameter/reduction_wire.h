#ifndef COXSWAIN_CLIENT_PARAMETER_REDUCTION_WIRE_H_
#define COXSWAIN_CLIENT_PARAMETER_REDUCTION_WIRE_H_

#include "client/comm/communicator.h"
#include "proto/parameter.pb.h"

namespace coxswain {

// A reduction as the parameter service names it.
inline v1::Reduction ToWire(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return v1::REDUCTION_MIN;
    case ReduceOp::kMax:
      return v1::REDUCTION_MAX;
    case ReduceOp::kSum:
      break;
  }
  return v1::REDUCTION_SUM;
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_PARAMETER_REDUCTION_WIRE_H_
