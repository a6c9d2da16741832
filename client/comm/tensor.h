#ifndef COXSWAIN_CLIENT_COMM_TENSOR_H_
#define COXSWAIN_CLIENT_COMM_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace coxswain {

// Element types that travel. 16-bit floats are held as their bit patterns.
enum class DType {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt32,
  kInt64,
  kUInt8
};

size_t SizeOf(DType dtype);             // bytes of one element
absl::string_view NameOf(DType dtype);  // "float32", ...
std::optional<DType> DTypeFromName(absl::string_view name);

// Where memory lives. Index counts devices of a kind on this host.
struct Device {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  friend bool operator==(const Device& a, const Device& b) {
    return a.kind == b.kind && a.index == b.index;
  }
};

// A run of elements that somebody else owns.
struct Span {
  void* data = nullptr;
  int64_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Device device;

  int64_t bytes() const { return count * static_cast<int64_t>(SizeOf(dtype)); }
  // The elements [offset, offset + count) of this run.
  Span Slice(int64_t offset, int64_t slice_count) const;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TENSOR_H_
