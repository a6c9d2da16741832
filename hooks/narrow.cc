#include "hooks/narrow.h"

#include <cstring>

#include "base/check.h"
#include "hooks/kernels/elementwise.h"

namespace coxswain {
namespace {

template <typename T>
void NarrowValues(const Span& in, DType to, uint16_t* out, double factor) {
  const T* values = static_cast<const T*>(in.data);
  if (to == DType::kFloat16) {
    ScaleToFloat16(values, out, in.count, static_cast<T>(factor));
  } else {
    ScaleToBFloat16(values, out, in.count, static_cast<T>(factor));
  }
}

template <typename T>
void WidenValues(const uint16_t* in, DType from, const Span& out) {
  T* values = static_cast<T*>(out.data);
  if (from == DType::kFloat16) {
    WidenFloat16(in, values, out.count);
  } else {
    WidenBFloat16(in, values, out.count);
  }
}

}  // namespace

template <typename T>
void ReadSpan(const Span& in, T* out) {
  if (in.count == 0) return;
  if (!IsWide(in.dtype)) {
    return WidenSpan(static_cast<const uint16_t*>(in.data), in.dtype,
                     Span{out, in.count, kDTypeOf<T>, in.device});
  }
  COXSWAIN_CHECK(in.dtype == kDTypeOf<T>);
  std::memcpy(out, in.data, static_cast<size_t>(in.bytes()));
}

template <typename T>
void WriteSpan(const T* in, const Span& out) {
  if (out.count == 0) return;
  if (!IsWide(out.dtype)) {
    T* source = const_cast<T*>(in);  // a Span has no read-only form
    return NarrowSpan(Span{source, out.count, kDTypeOf<T>, out.device},
                      out.dtype, static_cast<uint16_t*>(out.data));
  }
  COXSWAIN_CHECK(out.dtype == kDTypeOf<T>);
  std::memcpy(out.data, in, static_cast<size_t>(out.bytes()));
}

template void ReadSpan<float>(const Span&, float*);
template void ReadSpan<double>(const Span&, double*);
template void WriteSpan<float>(const float*, const Span&);
template void WriteSpan<double>(const double*, const Span&);

void NarrowSpan(const Span& in, DType to, uint16_t* out, double factor) {
  COXSWAIN_CHECK(IsWide(in.dtype) && !IsWide(to));
  if (in.dtype == DType::kFloat32) {
    NarrowValues<float>(in, to, out, factor);
  } else {
    NarrowValues<double>(in, to, out, factor);
  }
}

void WidenSpan(const uint16_t* in, DType from, const Span& out) {
  COXSWAIN_CHECK(IsWide(out.dtype) && !IsWide(from));
  if (out.dtype == DType::kFloat32) {
    WidenValues<float>(in, from, out);
  } else {
    WidenValues<double>(in, from, out);
  }
}

void DivideNarrow(uint16_t* values, int64_t count, DType dtype, int divisor) {
  if (dtype == DType::kFloat16) {
    DivideFloat16(values, count, static_cast<float>(divisor));
  } else {
    DivideBFloat16(values, count, static_cast<float>(divisor));
  }
}

}  // namespace coxswain
