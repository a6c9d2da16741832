#include "client/comm/two_level/half_floats.h"

#include <cstdint>

#include "base/float16.h"

namespace coxswain {
namespace {

template <float (*kLoad)(uint16_t)>
void WidenAll(const uint16_t* halves, float* floats, int64_t count) {
  for (int64_t i = 0; i < count; ++i) floats[i] = kLoad(halves[i]);
}

template <uint16_t (*kStore)(float)>
void NarrowAll(const float* floats, uint16_t* halves, int64_t count) {
  for (int64_t i = 0; i < count; ++i) halves[i] = kStore(floats[i]);
}

}  // namespace

bool IsHalfFloat(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

void Widen(const Span& halves, const Span& floats) {
  const auto* const from = static_cast<const uint16_t*>(halves.data);
  auto* const to = static_cast<float*>(floats.data);
  halves.dtype == DType::kFloat16
      ? WidenAll<Float16ToFloat>(from, to, halves.count)
      : WidenAll<BFloat16ToFloat>(from, to, halves.count);
}

void Narrow(const Span& floats, const Span& halves) {
  const auto* const from = static_cast<const float*>(floats.data);
  auto* const to = static_cast<uint16_t*>(halves.data);
  halves.dtype == DType::kFloat16
      ? NarrowAll<FloatToFloat16>(from, to, halves.count)
      : NarrowAll<FloatToBFloat16>(from, to, halves.count);
}

}  // namespace coxswain
