#ifndef COXSWAIN_TESTS_CONFORMANCE_ELEMENTS_H_
#define COXSWAIN_TESTS_CONFORMANCE_ELEMENTS_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "client/device/tensor.h"

namespace coxswain {

// Elements of one type with access by value.
class Elements {
 public:
  Elements(DType dtype, int64_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(static_cast<size_t>(count) * SizeOf(dtype)) {}

  Span span() {
    Span span;
    span.data = bytes_.data();
    span.count = count_;
    span.dtype = dtype_;
    return span;
  }
  double Get(int64_t i) const;
  void Set(int64_t i, double value);
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  template <typename T>
  T Read(int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  void Write(int64_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }

  DType dtype_;
  int64_t count_;
  std::vector<char> bytes_;
};

inline double Elements::Get(int64_t i) const {
  switch (dtype_) {
    case DType::kFloat32:
      return Read<float>(i);
    case DType::kFloat64:
      return Read<double>(i);
    case DType::kFloat16:
      return Float16ToFloat(Read<uint16_t>(i));
    case DType::kBFloat16:
      return BFloat16ToFloat(Read<uint16_t>(i));
    case DType::kInt8:
      return Read<int8_t>(i);
    case DType::kInt32:
      return Read<int32_t>(i);
    case DType::kInt64:
      return static_cast<double>(Read<int64_t>(i));
    case DType::kUInt8:
      return Read<uint8_t>(i);
  }
  return 0;
}

inline void Elements::Set(int64_t i, double value) {
  switch (dtype_) {
    case DType::kFloat32:
      return Write(i, static_cast<float>(value));
    case DType::kFloat64:
      return Write(i, value);
    case DType::kFloat16:
      return Write(i, FloatToFloat16(static_cast<float>(value)));
    case DType::kBFloat16:
      return Write(i, FloatToBFloat16(static_cast<float>(value)));
    case DType::kInt8:
      return Write(i, static_cast<int8_t>(value));
    case DType::kInt32:
      return Write(i, static_cast<int32_t>(value));
    case DType::kInt64:
      return Write(i, static_cast<int64_t>(value));
    case DType::kUInt8:
      return Write(i, static_cast<uint8_t>(value));
  }
}

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_ELEMENTS_H_
