#include "hooks/kernels/elementwise.h"

#include <atomic>
#include <cstdint>

#include "hooks/kernels/parallel.h"

// Highway's order: this file once for each target, then the vectors.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/kernels/elementwise.cc"
#include "hwy/foreach_target.h"  // NOLINT
#include "hooks/kernels/vectors-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
struct Narrowing {
  const T* in;
  uint16_t* out;
  int64_t count;
  T scale;
  bool stream;
  template <class Format>
  HWY_INLINE void Run() const {
    NarrowRow<Format>(in, out, count, scale, stream);
  }
};

template <typename T>
struct Widening {
  const uint16_t* in;
  T* out;
  int64_t count;
  bool stream;
  template <class Format>
  HWY_INLINE void Run() const {
    WidenRow<Format>(in, out, count, stream);
  }
};

struct NarrowDivision {
  uint16_t* values;
  int64_t count;
  float divisor;
  template <class Format>
  HWY_INLINE void Run() const {
    const Tag<float> d;
    const Bits16<Tag<float>> d16;
    constexpr int64_t kStep = hn::MaxLanes(Tag<float>());
    const auto by = hn::Set(d, divisor);
    int64_t i = 0;
    for (; i + kStep <= count; i += kStep) {
      const auto value = Format::Widen(d, hn::LoadU(d16, values + i));
      hn::StoreU(Format::Narrow(d, hn::Div(value, by)), d16, values + i);
    }
    for (; i < count; ++i) {
      values[i] = Format::Narrow(Format::Widen(values[i]) / divisor);
    }
  }
};

template <typename T>
HWY_INLINE void DivideAll(T* values, int64_t count, T divisor) {
  for (int64_t i = 0; i < count; ++i) values[i] /= divisor;
}

template <typename T>
HWY_INLINE void AddAll(T* values, const T* other, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] += other[i];
}

template <typename T>
HWY_INLINE int64_t CountAll(const T* values, int64_t count) {
  int64_t found = 0;
  // x - x is 0 for a finite x, and NaN otherwise.
  for (int64_t i = 0; i < count; ++i) {
    found += values[i] - values[i] == T{0} ? 0 : 1;
  }
  return found;
}

}  // namespace

void NarrowF32(DType to, const float* in, uint16_t* out, int64_t count,
               float scale, bool stream) {
  WithFormat(to, Narrowing<float>{in, out, count, scale, stream});
  if (stream) hwy::FlushStream();
}
void NarrowF64(DType to, const double* in, uint16_t* out, int64_t count,
               double scale, bool stream) {
  WithFormat(to, Narrowing<double>{in, out, count, scale, stream});
}
void WidenF32(DType from, const uint16_t* in, float* out, int64_t count,
              bool stream) {
  WithFormat(from, Widening<float>{in, out, count, stream});
  if (stream) hwy::FlushStream();
}
void WidenF64(DType from, const uint16_t* in, double* out, int64_t count,
              bool stream) {
  WithFormat(from, Widening<double>{in, out, count, stream});
}
void DivideF16(DType type, uint16_t* values, int64_t count, float divisor) {
  WithFormat(type, NarrowDivision{values, count, divisor});
}
void DivideF32(float* values, int64_t count, float divisor) {
  DivideAll(values, count, divisor);
}
void DivideF64(double* values, int64_t count, double divisor) {
  DivideAll(values, count, divisor);
}
void AddF32(float* values, const float* other, int64_t count) {
  AddAll(values, other, count);
}
void AddF64(double* values, const double* other, int64_t count) {
  AddAll(values, other, count);
}
int64_t CountF32(const float* values, int64_t count) {
  return CountAll(values, count);
}
int64_t CountF64(const double* values, int64_t count) {
  return CountAll(values, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coxswain {
namespace {

HWY_EXPORT(NarrowF32);
HWY_EXPORT(NarrowF64);
HWY_EXPORT(WidenF32);
HWY_EXPORT(WidenF64);
HWY_EXPORT(DivideF16);
HWY_EXPORT(DivideF32);
HWY_EXPORT(DivideF64);
HWY_EXPORT(AddF32);
HWY_EXPORT(AddF64);
HWY_EXPORT(CountF32);
HWY_EXPORT(CountF64);

// From this many elements on, between float and 16 bits, outputs would push
// everything else out of the second cache, and are written past it.
constexpr int64_t kStreamCount = int64_t{1} << 19;

// Whole cache lines of every type.
constexpr int64_t kGrain = 64;

void Narrow(const float* in, DType to, uint16_t* out, int64_t count,
            float scale) {
  const bool stream = count >= kStreamCount;
  RunRanges(count, kGrain, count * 6, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(NarrowF32)
    (to, in + begin, out + begin, end - begin, scale, stream);
  });
}
void Narrow(const double* in, DType to, uint16_t* out, int64_t count,
            double scale) {
  RunRanges(count, kGrain, count * 10, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(NarrowF64)
    (to, in + begin, out + begin, end - begin, scale, false);
  });
}
void Widen(const uint16_t* in, DType from, float* out, int64_t count) {
  const bool stream = count >= kStreamCount;
  RunRanges(count, kGrain, count * 6, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(WidenF32)
    (from, in + begin, out + begin, end - begin, stream);
  });
}
void Widen(const uint16_t* in, DType from, double* out, int64_t count) {
  RunRanges(count, kGrain, count * 10, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(WidenF64)
    (from, in + begin, out + begin, end - begin, false);
  });
}
void DivideNarrow(DType type, uint16_t* values, int64_t count, float divisor) {
  RunRanges(count, kGrain, count * 4, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DivideF16)
    (type, values + begin, end - begin, divisor);
  });
}

}  // namespace

void Divide(float* values, int64_t count, float divisor) {
  RunRanges(count, kGrain, count * 8, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DivideF32)(values + begin, end - begin, divisor);
  });
}
void Divide(double* values, int64_t count, double divisor) {
  RunRanges(count, kGrain, count * 16, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DivideF64)(values + begin, end - begin, divisor);
  });
}
void DivideFloat16(uint16_t* values, int64_t count, float divisor) {
  DivideNarrow(DType::kFloat16, values, count, divisor);
}
void DivideBFloat16(uint16_t* values, int64_t count, float divisor) {
  DivideNarrow(DType::kBFloat16, values, count, divisor);
}

void ScaleToFloat16(const float* in, uint16_t* out, int64_t count,
                    float factor) {
  Narrow(in, DType::kFloat16, out, count, factor);
}
void ScaleToFloat16(const double* in, uint16_t* out, int64_t count,
                    double factor) {
  Narrow(in, DType::kFloat16, out, count, factor);
}
void ScaleToBFloat16(const float* in, uint16_t* out, int64_t count,
                     float factor) {
  Narrow(in, DType::kBFloat16, out, count, factor);
}
void ScaleToBFloat16(const double* in, uint16_t* out, int64_t count,
                     double factor) {
  Narrow(in, DType::kBFloat16, out, count, factor);
}

void WidenFloat16(const uint16_t* in, float* out, int64_t count) {
  Widen(in, DType::kFloat16, out, count);
}
void WidenFloat16(const uint16_t* in, double* out, int64_t count) {
  Widen(in, DType::kFloat16, out, count);
}
void WidenBFloat16(const uint16_t* in, float* out, int64_t count) {
  Widen(in, DType::kBFloat16, out, count);
}
void WidenBFloat16(const uint16_t* in, double* out, int64_t count) {
  Widen(in, DType::kBFloat16, out, count);
}

void Add(float* values, const float* other, int64_t count) {
  RunRanges(count, kGrain, count * 12, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddF32)(values + begin, other + begin, end - begin);
  });
}
void Add(double* values, const double* other, int64_t count) {
  RunRanges(count, kGrain, count * 24, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddF64)(values + begin, other + begin, end - begin);
  });
}

int64_t CountNonFinite(const float* values, int64_t count) {
  std::atomic<int64_t> found{0};
  RunRanges(count, kGrain, count * 4, [&](int64_t begin, int64_t end) {
    found += HWY_DYNAMIC_DISPATCH(CountF32)(values + begin, end - begin);
  });
  return found;
}
int64_t CountNonFinite(const double* values, int64_t count) {
  std::atomic<int64_t> found{0};
  RunRanges(count, kGrain, count * 8, [&](int64_t begin, int64_t end) {
    found += HWY_DYNAMIC_DISPATCH(CountF64)(values + begin, end - begin);
  });
  return found;
}

}  // namespace coxswain
#endif  // HWY_ONCE
