#include "client/reduce/gradient_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/float16.h"

// Highway's order: this file once for each target, then the vectors.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "client/reduce/gradient_statistics.cc"
#include "hwy/foreach_target.h"  // NOLINT
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Element i of a block is added to partial sum i % kLanes, whatever the width
// of the vectors. At the end the upper half is added to the lower half until
// one is left, and the blocks' sums are added up in order.
constexpr int64_t kLanes = 16;
// Elements of a block, which stays in the first cache.
constexpr int64_t kBlock = 2048;

using Wide = hn::CappedTag<double, kLanes>;
using Single = hn::Rebind<float, Wide>;
using Integer = hn::Rebind<int32_t, Wide>;
using Half = hn::Rebind<uint16_t, Wide>;

// How elements are held, and what they are computed as: one, or a vector of
// them widened to double.
template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  static T Widen(T value) { return value; }
  static T Narrow(T value) { return value; }
  static HWY_INLINE hn::Vec<Wide> Load(const double* from) {
    return hn::LoadU(Wide(), from);
  }
  static HWY_INLINE hn::Vec<Wide> Load(const float* from) {
    return hn::PromoteTo(Wide(), hn::LoadU(Single(), from));
  }
};
struct Float16 {
  using Stored = uint16_t;
  using Value = float;
  static float Widen(uint16_t bits) { return Float16ToFloat(bits); }
  static uint16_t Narrow(float value) { return FloatToFloat16(value); }
  static HWY_INLINE hn::Vec<Wide> Load(const uint16_t* from) {
    // As Float16ToFloat, but for the sign, which a square does not have.
    // Highway's own does not know infinities on all instruction sets.
    const auto bits = hn::PromoteTo(Integer(), hn::LoadU(Half(), from));
    const auto magnitude = hn::And(bits, hn::Set(Integer(), 0x7fff));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(Integer(), 112 << 23));
    const auto subnormal = hn::Mul(hn::ConvertTo(Single(), magnitude),
                                   hn::Set(Single(), 0x1p-24f));
    const auto infinite = hn::Or(shifted, hn::Set(Integer(), 0x7f800000));
    const auto small = hn::Lt(magnitude, hn::Set(Integer(), 0x400));
    const auto large = hn::Gt(magnitude, hn::Set(Integer(), 0x7bff));
    const auto finite =
        hn::IfThenElse(small, hn::BitCast(Integer(), subnormal), normal);
    const auto result = hn::IfThenElse(large, infinite, finite);
    return hn::PromoteTo(Wide(), hn::BitCast(Single(), result));
  }
};
struct BFloat16 {
  using Stored = uint16_t;
  using Value = float;
  static float Widen(uint16_t bits) { return BFloat16ToFloat(bits); }
  static uint16_t Narrow(float value) { return FloatToBFloat16(value); }
  static HWY_INLINE hn::Vec<Wide> Load(const uint16_t* from) {
    const auto bits = hn::PromoteTo(Integer(), hn::LoadU(Half(), from));
    return hn::PromoteTo(Wide(),
                         hn::BitCast(Single(), hn::ShiftLeft<16>(bits)));
  }
};

// Adds up partial sums; overwrites them.
HWY_INLINE double SumOfLanes(double* lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

template <class Element>
HWY_INLINE double SumOfSquares(const typename Element::Stored* values,
                               int64_t count) {
  constexpr int64_t kStep = hn::MaxLanes(Wide());
  constexpr int kVectors = kLanes / kStep;
  hn::Vec<Wide> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(Wide());
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int vector = 0; vector < kVectors; ++vector) {
      const auto value = Element::Load(values + i + vector * kStep);
      sums[vector] = hn::Add(sums[vector], hn::Mul(value, value));
    }
  }
  HWY_ALIGN double lanes[kLanes];
  for (int vector = 0; vector < kVectors; ++vector) {
    hn::Store(sums[vector], Wide(), lanes + vector * kStep);
  }
  for (int64_t i = whole; i < count; ++i) {
    const double value = Element::Widen(values[i]);
    lanes[i - whole] += value * value;
  }
  return SumOfLanes(lanes);
}

template <class Element>
HWY_INLINE int64_t CountNonFinite(const typename Element::Stored* values,
                                  int64_t count) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = Element::Widen(values[i]);
    // x - x is 0 for a finite x, and NaN otherwise.
    found += value - value == 0 ? 0 : 1;
  }
  return found;
}

// Copies too, unless `out` is null.
template <class Element>
HWY_INLINE GradientStatistics MeasureAll(const void* in, void* out,
                                         int64_t count) {
  using Stored = typename Element::Stored;
  const Stored* from = static_cast<const Stored*>(in);
  Stored* to = static_cast<Stored*>(out);
  GradientStatistics result;
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    if (to != nullptr) std::memcpy(to + i, from + i, n * sizeof(Stored));
    const double sum = SumOfSquares<Element>(from + i, n);
    result.sum_of_squares += sum;
    // A finite sum is one of finite elements only.
    if (!std::isfinite(sum)) {
      result.non_finite += CountNonFinite<Element>(from + i, n);
    }
  }
  return result;
}

template <class Element>
HWY_INLINE void ScaleAll(const void* in, void* out, int64_t count,
                         double factor) {
  using Stored = typename Element::Stored;
  const auto by = static_cast<typename Element::Value>(factor);
  const Stored* from = static_cast<const Stored*>(in);
  Stored* to = static_cast<Stored*>(out);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = Element::Narrow(Element::Widen(from[i]) * by);
  }
}

template <class Element>
HWY_INLINE void AddScaledAll(const void* in, void* out, int64_t count,
                             double factor) {
  using Stored = typename Element::Stored;
  const auto by = static_cast<typename Element::Value>(factor);
  const Stored* from = static_cast<const Stored*>(in);
  Stored* to = static_cast<Stored*>(out);
  for (int64_t i = 0; i < count; ++i) {
    to[i] =
        Element::Narrow(Element::Widen(to[i]) + Element::Widen(from[i]) * by);
  }
}

}  // namespace

GradientStatistics MeasureSpan(const Span& in, void* out) {
  switch (in.dtype) {
    case DType::kFloat32:
      return MeasureAll<Plain<float>>(in.data, out, in.count);
    case DType::kFloat64:
      return MeasureAll<Plain<double>>(in.data, out, in.count);
    case DType::kFloat16:
      return MeasureAll<Float16>(in.data, out, in.count);
    case DType::kBFloat16:
      return MeasureAll<BFloat16>(in.data, out, in.count);
    default:
      COXSWAIN_CHECK(false);
  }
}

void ScaleSpan(const Span& in, void* out, double factor) {
  switch (in.dtype) {
    case DType::kFloat32:
      return ScaleAll<Plain<float>>(in.data, out, in.count, factor);
    case DType::kFloat64:
      return ScaleAll<Plain<double>>(in.data, out, in.count, factor);
    case DType::kFloat16:
      return ScaleAll<Float16>(in.data, out, in.count, factor);
    case DType::kBFloat16:
      return ScaleAll<BFloat16>(in.data, out, in.count, factor);
    default:
      COXSWAIN_CHECK(false);
  }
}

void AddScaledSpan(const Span& in, void* out, double factor) {
  switch (in.dtype) {
    case DType::kFloat32:
      return AddScaledAll<Plain<float>>(in.data, out, in.count, factor);
    case DType::kFloat64:
      return AddScaledAll<Plain<double>>(in.data, out, in.count, factor);
    case DType::kFloat16:
      return AddScaledAll<Float16>(in.data, out, in.count, factor);
    case DType::kBFloat16:
      return AddScaledAll<BFloat16>(in.data, out, in.count, factor);
    default:
      COXSWAIN_CHECK(false);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coxswain {
namespace {

HWY_EXPORT(MeasureSpan);
HWY_EXPORT(ScaleSpan);
HWY_EXPORT(AddScaledSpan);

GradientStatistics MeasureAndCopy(const Span& values, void* out) {
  COXSWAIN_CHECK(values.device.kind == Device::Kind::kCpu);
  GradientStatistics result = HWY_DYNAMIC_DISPATCH(MeasureSpan)(values, out);
  // Which NaN comes out of several is the CPU's choice.
  if (std::isnan(result.sum_of_squares)) {
    result.sum_of_squares = std::numeric_limits<double>::quiet_NaN();
  }
  return result;
}

}  // namespace

GradientStatistics Measure(const Span& values) {
  return MeasureAndCopy(values, nullptr);
}

GradientStatistics CopyAndMeasure(const Span& values, void* out) {
  return MeasureAndCopy(values, out);
}

void Scale(const Span& values, double factor) {
  CopyScaled(values, factor, values.data);
}

void CopyScaled(const Span& values, double factor, void* out) {
  COXSWAIN_CHECK(values.device.kind == Device::Kind::kCpu);
  HWY_DYNAMIC_DISPATCH(ScaleSpan)(values, out, factor);
}

void AddScaled(const Span& values, double factor, void* out) {
  COXSWAIN_CHECK(values.device.kind == Device::Kind::kCpu);
  HWY_DYNAMIC_DISPATCH(AddScaledSpan)(values, out, factor);
}

}  // namespace coxswain
#endif  // HWY_ONCE
