// Compiled once for each instruction set, as Highway does it: to be included
// between foreach_target.h and the code that uses it.

// NOLINTNEXTLINE: the guard is open once for each target
#if defined(COXSWAIN_HOOKS_KERNELS_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifndef COXSWAIN_HOOKS_KERNELS_VECTORS_INL_H_
#define COXSWAIN_HOOKS_KERNELS_VECTORS_INL_H_
#else
#undef COXSWAIN_HOOKS_KERNELS_VECTORS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "base/float16.h"
#include "client/device/tensor.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A sum along memory is kept in this many partial sums, whatever the width of
// the vectors: element i is added to partial sum i % kLanes, in order. At the
// end the upper half is added to the lower half until one is left.
template <typename T>
constexpr int64_t kLanes = 64 / sizeof(T);

// What partial sums come to; overwrites them.
template <typename T>
HWY_INLINE T SumOfLanes(T* lanes) {
  for (int64_t width = kLanes<T> / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane)
      lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Vectors of at most kLanes elements.
template <typename T>
using Tag = hn::CappedTag<T, static_cast<size_t>(kLanes<T>)>;

// (0 * 0 + 1 * 1) + (2 * 2 + 3 * 3) of the first kCount.
template <int kCount, class V>
HWY_INLINE V SumOfProducts(const V* a, const V* b) {
  static_assert(kCount >= 1 && kCount <= 4, "");
  V sum = hn::Mul(a[0], b[0]);
  if constexpr (kCount >= 2) sum = hn::Add(sum, hn::Mul(a[1], b[1]));
  if constexpr (kCount == 3) sum = hn::Add(sum, hn::Mul(a[2], b[2]));
  if constexpr (kCount == 4) {
    sum = hn::Add(sum, hn::Add(hn::Mul(a[2], b[2]), hn::Mul(a[3], b[3])));
  }
  return sum;
}

template <class D>
using Bits16 = hn::Rebind<uint16_t, D>;

// The two 16-bit formats; vectors as in base/float16.h, bit for bit. D is a
// tag of float.
struct BFloat16Format {
  // The result is the upper half of each element.
  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> Round(D /*d*/,
                                                           hn::Vec<D> value) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto nan = hn::Or(bits, hn::Set(du, 0x400000));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    return hn::IfThenElse(is_nan, nan, rounded);
  }
  template <class D>
  static HWY_INLINE hn::Vec<Bits16<D>> Narrow(D d, hn::Vec<D> value) {
    const hn::RebindToSigned<D> di;
    const auto upper = hn::ShiftRight<16>(Round(d, value));
    return hn::DemoteTo(Bits16<D>(), hn::BitCast(di, upper));
  }
#if HWY_TARGET != HWY_SCALAR
  template <class D>
  static HWY_INLINE hn::Vec<hn::Repartition<uint16_t, D>> NarrowTwo(
      D d, hn::Vec<D> lower, hn::Vec<D> upper) {
    const hn::Repartition<uint16_t, D> both;
    return hn::ConcatOdd(both, hn::BitCast(both, Round(d, upper)),
                         hn::BitCast(both, Round(d, lower)));
  }
#endif
  template <class D>
  static HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<Bits16<D>> value) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, value)));
  }
  static HWY_INLINE uint16_t Narrow(float value) {
    return FloatToBFloat16(value);
  }
  static HWY_INLINE float Widen(uint16_t value) {
    return BFloat16ToFloat(value);
  }
};

struct Float16Format {
  template <class D>
  static HWY_INLINE hn::Vec<Bits16<D>> Narrow(D d, hn::Vec<D> value) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || \
    HWY_TARGET == HWY_AVX3_DL
    // Rounds and keeps NaNs as base/float16.h does.
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::BitCast(Bits16<D>(), hn::DemoteTo(d16, value));
#else
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(du, value);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto normal =
        hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, hn::Set(du, 112u << 23)),
                                   hn::Add(odd, hn::Set(du, 0xfff))));
    const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto subnormal =
        hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3f000000));
    const auto nan =
        hn::Or(hn::Set(du, 0x7e00),
               hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ff)));
    // Magnitudes are below 2^31: compared as signed numbers.
    const auto order = hn::BitCast(di, magnitude);
    const auto below = [](auto tag, auto mask)
                           HWY_ATTR { return hn::RebindMask(tag, mask); };
    auto result = hn::IfThenElse(
        below(du, hn::Lt(order, hn::Set(di, 0x38800000))), subnormal, normal);
    result = hn::IfThenElse(below(du, hn::Lt(order, hn::Set(di, 0x477ff000))),
                            result, hn::Set(du, 0x7c00));
    result = hn::IfThenElse(below(du, hn::Gt(order, hn::Set(di, 0x7f800000))),
                            nan, result);
    return hn::DemoteTo(Bits16<D>(), hn::BitCast(di, hn::Or(result, sign)));
#endif
  }
#if HWY_TARGET != HWY_SCALAR
  template <class D>
  static HWY_INLINE hn::Vec<hn::Repartition<uint16_t, D>> NarrowTwo(
      D d, hn::Vec<D> lower, hn::Vec<D> upper) {
    const hn::Repartition<uint16_t, D> both;
    return hn::Combine(both, Narrow(d, upper), Narrow(d, lower));
  }
#endif
  template <class D>
  static HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<Bits16<D>> value) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || \
    HWY_TARGET == HWY_AVX3_DL
    // The instruction would quiet a signalling NaN.
    const hn::Rebind<hwy::float16_t, D> d16;
    const auto result = hn::PromoteTo(d, hn::BitCast(d16, value));
    if (HWY_LIKELY(hn::AllFalse(d, hn::IsNaN(result)))) return result;
#endif
    return WidenByBits(d, value);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> WidenByBits(D d, hn::Vec<Bits16<D>> value) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto wide = hn::PromoteTo(du, value);
    const auto magnitude = hn::And(wide, hn::Set(du, 0x7fff));
    const auto sign = hn::ShiftLeft<16>(hn::Sub(wide, magnitude));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(du, 112u << 23));
    const auto subnormal =
        hn::BitCast(du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)),
                                hn::Set(d, 0x1p-24f)));
    const auto order = hn::BitCast(di, magnitude);
    const auto is_small = hn::RebindMask(du, hn::Lt(order, hn::Set(di, 0x400)));
    const auto is_large =
        hn::RebindMask(du, hn::Gt(order, hn::Set(di, 0x7bff)));
    const auto large = hn::Or(shifted, hn::Set(du, 0x7f800000));
    const auto result = hn::IfThenElse(
        is_large, large, hn::IfThenElse(is_small, subnormal, normal));
    return hn::BitCast(d, hn::Or(result, sign));
  }
  static HWY_INLINE uint16_t Narrow(float value) {
    return FloatToFloat16(value);
  }
  static HWY_INLINE float Widen(uint16_t value) {
    return Float16ToFloat(value);
  }
};

// A float between `value` and zero whose last bit is set if it is not exact.
// Rounding it on to fewer bits gives what rounding `value` at once would.
HWY_INLINE float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const uint32_t bits = FloatBits(nearest);
  const double distance = back < 0 ? -back : back;
  const uint32_t truncated =
      distance > (value < 0 ? -value : value) ? bits - 1 : bits;
  const bool exact = back == value || value != value;
  return FloatFromBits(exact ? bits : truncated | 1u);
}
HWY_INLINE float RoundToOdd(float value) { return value; }

// Stores past the caches if kStream, where `to` must be aligned.
template <bool kStream, class D, typename T>
HWY_INLINE void Put(hn::Vec<D> value, D d, T* to) {
  if constexpr (kStream) {
    hn::Stream(value, d, to);
  } else {
    hn::StoreU(value, d, to);
  }
}

// How many elements to go until `to` is at a multiple of 64 bytes.
template <typename T>
HWY_INLINE int64_t HeadOf(const T* to, int64_t count) {
  const auto at = reinterpret_cast<uintptr_t>(to) % 64;
  return std::min(count, static_cast<int64_t>((64 - at) % 64 / sizeof(T)));
}

// Two vectors of float as one of 16-bit values, of the same size, which is
// what instructions that store past the caches want.
template <class Format, bool kStream, class D>
HWY_INLINE void NarrowTwo(D d, const float* in, uint16_t* out,
                          hn::Vec<D> factor) {
  constexpr int64_t kHalf = hn::MaxLanes(D());
  const auto lower = hn::Mul(hn::LoadU(d, in), factor);
  const auto upper = hn::Mul(hn::LoadU(d, in + kHalf), factor);
#if HWY_TARGET == HWY_SCALAR
  const Bits16<D> d16;
  hn::Store(Format::Narrow(d, lower), d16, out);
  hn::Store(Format::Narrow(d, upper), d16, out + 1);
#else
  const hn::Repartition<uint16_t, D> both;
  Put<kStream>(Format::NarrowTwo(d, lower, upper), both, out);
#endif
}

// Large inputs are read from four pages in turns, and fetched a turn ahead
// (past the end this is harmless): the hardware fetches ahead within a page
// only, so that more pages are more memory at a time.
constexpr int64_t kPage = 1024;
constexpr int64_t kPages = 4;

// Returns how many elements are done.
template <class Format>
HWY_INLINE int64_t NarrowPages(const float* in, uint16_t* out, int64_t count,
                               float scale) {
  const Tag<float> d;
  constexpr int64_t kStep = 2 * hn::MaxLanes(Tag<float>());
  const auto factor = hn::Set(d, scale);
  int64_t begin = 0;
  for (; begin + kPages * kPage <= count; begin += kPages * kPage) {
    for (int64_t i = begin; i < begin + kPage; i += kStep) {
#pragma GCC unroll 4
      for (int64_t page = 0; page < kPages; ++page) {
        const int64_t at = i + page * kPage;
        for (int64_t line = at; line < at + kStep; line += 16) {
          __builtin_prefetch(in + line + kPages * kPage, 0, 2);
        }
        NarrowTwo<Format, true>(d, in + at, out + at, factor);
      }
    }
  }
  return begin;
}

template <class Format, bool kStream>
HWY_INLINE void NarrowMain(const float* in, uint16_t* out, int64_t count,
                           float scale) {
  const Tag<float> d;
  constexpr int64_t kStep = 2 * hn::MaxLanes(Tag<float>());
  const auto factor = hn::Set(d, scale);
  int64_t i = 0;
  if constexpr (kStream) i = NarrowPages<Format>(in, out, count, scale);
  for (; i + kStep <= count; i += kStep) {
    NarrowTwo<Format, kStream>(d, in + i, out + i, factor);
  }
  for (; i < count; ++i) out[i] = Format::Narrow(in[i] * scale);
}

// out[i] = narrow(in[i] * scale).
template <class Format>
HWY_INLINE void NarrowRow(const float* in, uint16_t* out, int64_t count,
                          float scale, bool stream) {
  if (!stream) return NarrowMain<Format, false>(in, out, count, scale);
  const int64_t head = HeadOf(out, count);
  for (int64_t i = 0; i < head; ++i) out[i] = Format::Narrow(in[i] * scale);
  NarrowMain<Format, true>(in + head, out + head, count - head, scale);
}
template <class Format>
HWY_INLINE void NarrowRow(const double* in, uint16_t* out, int64_t count,
                          double scale, bool /*stream*/) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = Format::Narrow(RoundToOdd(in[i] * scale));
  }
}

template <class Format, bool kStream>
HWY_INLINE void WidenMain(const uint16_t* in, float* out, int64_t count) {
  const Tag<float> d;
  const Bits16<Tag<float>> d16;
  constexpr int64_t kStep = hn::MaxLanes(Tag<float>());
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < 16; k += kStep) {
      const auto value = Format::Widen(d, hn::LoadU(d16, in + i + k));
      Put<kStream>(value, d, out + i + k);
    }
  }
  for (; i < count; ++i) out[i] = Format::Widen(in[i]);
}

// out[i] = in[i], exactly.
template <class Format>
HWY_INLINE void WidenRow(const uint16_t* in, float* out, int64_t count,
                         bool stream) {
  if (!stream) return WidenMain<Format, false>(in, out, count);
  const int64_t head = HeadOf(out, count);
  for (int64_t i = 0; i < head; ++i) out[i] = Format::Widen(in[i]);
  WidenMain<Format, true>(in + head, out + head, count - head);
}
template <class Format>
HWY_INLINE void WidenRow(const uint16_t* in, double* out, int64_t count,
                         bool /*stream*/) {
  for (int64_t i = 0; i < count; ++i) out[i] = double{Format::Widen(in[i])};
}

template <bool kStream, typename T>
HWY_INLINE void CopyMain(const T* in, T* out, int64_t count) {
  const Tag<T> d;
  constexpr int64_t kStep = hn::MaxLanes(Tag<T>());
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < kLanes<T>; k += kStep) {
      Put<kStream>(hn::LoadU(d, in + i + k), d, out + i + k);
    }
  }
  for (; i < count; ++i) out[i] = in[i];
}

template <typename T>
HWY_INLINE void CopyRow(const T* in, T* out, int64_t count, bool stream) {
  if (!stream) return CopyMain<false>(in, out, count);
  const int64_t head = HeadOf(out, count);
  for (int64_t i = 0; i < head; ++i) out[i] = in[i];
  CopyMain<true>(in + head, out + head, count - head);
}

// Calls a.template Run<Format>() of the 16-bit type `type`.
template <class Action>
HWY_INLINE void WithFormat(DType type, const Action& action) {
  if (type == DType::kFloat16) {
    action.template Run<Float16Format>();
  } else {
    action.template Run<BFloat16Format>();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#endif  // COXSWAIN_HOOKS_KERNELS_VECTORS_INL_H_
