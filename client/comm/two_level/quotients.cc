#include "client/comm/two_level/quotients.h"

#include <cstdint>

#include "base/check.h"
#include "base/float16.h"

namespace coxswain {
namespace {

template <typename Float>
void DivideFloats(const Span& from, int divisor, const Span& to) {
  const auto* const values = static_cast<const Float*>(from.data);
  auto* const quotients = static_cast<Float*>(to.data);
  const auto by = static_cast<Float>(divisor);
  for (int64_t i = 0; i < from.count; ++i) quotients[i] = values[i] / by;
}

template <float (*kLoad)(uint16_t), uint16_t (*kStore)(float)>
void DivideHalves(const Span& from, int divisor, const Span& to) {
  const auto* const values = static_cast<const uint16_t*>(from.data);
  auto* const quotients = static_cast<uint16_t*>(to.data);
  const auto by = static_cast<float>(divisor);
  for (int64_t i = 0; i < from.count; ++i) {
    quotients[i] = kStore(kLoad(values[i]) / by);
  }
}

}  // namespace

void DivideInto(const Span& from, int divisor, const Span& to) {
  switch (from.dtype) {
    case DType::kFloat32:
      return DivideFloats<float>(from, divisor, to);
    case DType::kFloat64:
      return DivideFloats<double>(from, divisor, to);
    case DType::kFloat16:
      return DivideHalves<Float16ToFloat, FloatToFloat16>(from, divisor, to);
    case DType::kBFloat16:
      return DivideHalves<BFloat16ToFloat, FloatToBFloat16>(from, divisor, to);
    default:
      COXSWAIN_CHECK(false);
  }
}

}  // namespace coxswain
