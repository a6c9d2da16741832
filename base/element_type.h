#ifndef COXSWAIN_BASE_ELEMENT_TYPE_H_
#define COXSWAIN_BASE_ELEMENT_TYPE_H_

#include <cstddef>

#include "base/host_device.h"

namespace coxswain {

// Element types that travel, and how they are reduced. 16-bit floats are held
// as their bit patterns. Free of libraries, so that device code has it too.
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

// Returns the bytes of one element.
COXSWAIN_HOST_DEVICE constexpr size_t SizeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat64:
    case ElementType::kInt64:
      return 8;
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 2;
    case ElementType::kInt8:
    case ElementType::kUInt8:
      break;
  }
  return 1;
}

}  // namespace coxswain

#endif  // COXSWAIN_BASE_ELEMENT_TYPE_H_
