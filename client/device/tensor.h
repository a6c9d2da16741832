#ifndef COXSWAIN_CLIENT_DEVICE_TENSOR_H_
#define COXSWAIN_CLIENT_DEVICE_TENSOR_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/element_names.h"
#include "base/element_type.h"

namespace coxswain {

using DType = ElementType;

inline std::optional<DType> DTypeFromName(absl::string_view name) {
  return ElementTypeFromName(name);
}

// Where memory lives. Index counts devices of a kind on this host.
struct Device {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  friend bool operator==(const Device& a, const Device& b) {
    return a.kind == b.kind && a.index == b.index;
  }
};

// A run of elements, not owned.
struct Span {
  void* data = nullptr;
  int64_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Device device;

  int64_t bytes() const { return count * static_cast<int64_t>(SizeOf(dtype)); }

  // Returns the elements [offset, offset + slice_count), which this run has.
  Span Slice(int64_t offset, int64_t slice_count) const {
    COXSWAIN_CHECK(offset >= 0 && slice_count >= 0 &&
                   offset + slice_count <= count);
    Span slice = *this;
    slice.data =
        static_cast<char*>(data) + offset * static_cast<int64_t>(SizeOf(dtype));
    slice.count = slice_count;
    return slice;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_TENSOR_H_
