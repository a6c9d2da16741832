#include "client/comm/reduce_ops.h"

#include "base/check.h"
#include "base/reduce_elements.h"

namespace coxswain {
namespace {

ElementType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ElementType::kFloat32;
    case DType::kFloat64:
      return ElementType::kFloat64;
    case DType::kFloat16:
      return ElementType::kFloat16;
    case DType::kBFloat16:
      return ElementType::kBFloat16;
    case DType::kInt8:
      return ElementType::kInt8;
    case DType::kInt32:
      return ElementType::kInt32;
    case DType::kInt64:
      return ElementType::kInt64;
    case DType::kUInt8:
      return ElementType::kUInt8;
  }
  COXSWAIN_CHECK(false);
}

ElementOp OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ElementOp::kSum;
    case ReduceOp::kMin:
      return ElementOp::kMin;
    case ReduceOp::kMax:
      return ElementOp::kMax;
  }
  COXSWAIN_CHECK(false);
}

}  // namespace

void Reduce(DType dtype, ReduceOp op, void* out, const void* a, const void* b,
            size_t count) {
  ReduceElements(TypeOf(dtype), OpOf(op), out, a, b, count);
}

}  // namespace coxswain
