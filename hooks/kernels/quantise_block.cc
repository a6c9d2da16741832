#include "hooks/kernels/quantise_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "hooks/kernels/quantise.h"

// Highway's order: this file once for each target, then the vectors.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/kernels/quantise_block.cc"
#include "hwy/foreach_target.h"  // NOLINT
#include "hooks/kernels/vectors-inl.h"
// clang-format on

// The loops are plain ones that the compiler vectorises for each target: they
// compute each element for itself, so vectors of any width give the same bits.
HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {
namespace {

// Inputs are fetched a page ahead, as the hardware fetches ahead within a page
// only; past the end this is harmless.
HWY_INLINE void Fetch(const void* from, int64_t bytes) {
  constexpr int64_t kAhead = 4096;
  const char* begin = static_cast<const char*>(from) + kAhead;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(begin + i, 0, 3);
}

// x = gradient + error; or x += error, without a gradient.
template <typename T>
HWY_INLINE void SumAll(const T* HWY_RESTRICT gradient,
                       const T* HWY_RESTRICT error, T* HWY_RESTRICT x,
                       int64_t count) {
  const auto bytes = count * static_cast<int64_t>(sizeof(T));
  if (gradient != nullptr) Fetch(gradient, bytes);
  if (error != nullptr) Fetch(error, bytes);
  if (gradient == nullptr) {
    for (int64_t i = 0; error != nullptr && i < count; ++i) x[i] += error[i];
  } else if (error == nullptr) {
    for (int64_t i = 0; i < count; ++i) x[i] = gradient[i];
  } else {
    for (int64_t i = 0; i < count; ++i) x[i] = gradient[i] + error[i];
  }
}

// The largest magnitude. Without their signs, floats order as their bits do,
// an infinity and the NaNs coming last.
template <typename T>
HWY_INLINE T Largest(const T* HWY_RESTRICT x, int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  Bits largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, &x[i], sizeof(bits));
    bits &= std::numeric_limits<Bits>::max();
    largest = bits > largest ? bits : largest;
  }
  T result;
  std::memcpy(&result, &largest, sizeof(result));
  return result;
}

template <typename T>
HWY_INLINE float ScaleFor(T largest) {
  const float scale = static_cast<float>(largest / T{127});
  // 127 times a scale that was rounded up may overflow.
  if (!std::isfinite(scale * 127)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return scale < std::numeric_limits<float>::min() ? 0.0f : scale;
}

struct Widening {
  const uint16_t* in;
  float* out;
  int64_t count;
  template <class Format>
  HWY_INLINE void Run() const {
    WidenRow<Format>(in, out, count, false);
  }
};

struct Narrowing {
  const float* in;
  uint16_t* out;
  int64_t count;
  float scale;
  bool stream;
  template <class Format>
  HWY_INLINE void Run() const {
    NarrowRow<Format>(in, out, count, scale, stream);
  }
};

// Adding 1.5 * 2^23 (2^52 in double) rounds to an integer, which then stands in
// the lowest bits; as |x| <= 127 * scale up to rounding, it lies between -127
// and 127.
template <typename T>
HWY_INLINE void EncodeAll(T* HWY_RESTRICT x, int64_t count, T scale,
                          int8_t* HWY_RESTRICT codes) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  const T round = static_cast<T>(sizeof(T) == 8 ? 0x1.8p52 : 0x1.8p23);
  const T inverse = T{1} / scale;
  for (int64_t i = 0; i < count; ++i) {
    const T rounded = x[i] * inverse + round;
    Bits bits;
    std::memcpy(&bits, &rounded, sizeof(bits));
    codes[i] = static_cast<int8_t>(static_cast<uint8_t>(bits));
    x[i] -= (rounded - round) * scale;
  }
}

template <typename T>
HWY_INLINE void AccumulateAll(const int8_t* HWY_RESTRICT codes, T scale,
                              int64_t count, T* HWY_RESTRICT sum) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] += static_cast<T>(codes[i]) * scale;
  }
}

template <typename T>
HWY_INLINE void DecodeAll(const int8_t* HWY_RESTRICT codes, T scale,
                          int64_t count, T* HWY_RESTRICT out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(codes[i]) * scale;
}

// Scale and codes of the `count` elements of x that a block of `size` has;
// leaves in x what the codes leave out.
template <typename T>
HWY_INLINE void EncodeOne(T* x, int64_t count, int64_t size, uint8_t* out) {
  const float scale = ScaleFor(Largest(x, count));
  std::memcpy(out, &scale, sizeof(scale));
  auto* codes = reinterpret_cast<int8_t*>(out + sizeof(scale));
  if (scale > 0) {
    EncodeAll(x, count, static_cast<T>(scale), codes);
  } else {
    count = 0;
  }
  std::fill_n(codes + count, size - count, int8_t{0});
}

// x = the mean of an element over the blocks that are `stride` apart.
template <typename T>
HWY_INLINE void MeanOfBlock(const uint8_t* in, int64_t stride, int ranks,
                            int64_t size, T* HWY_RESTRICT x) {
  for (int rank = 0; rank < ranks; ++rank, in += stride) {
    float scale;
    std::memcpy(&scale, in, sizeof(scale));
    const auto* codes = reinterpret_cast<const int8_t*>(in + sizeof(scale));
    Fetch(codes, size);
    if (rank == 0) {
      DecodeAll(codes, static_cast<T>(scale), size, x);
    } else {
      AccumulateAll(codes, static_cast<T>(scale), size, x);
    }
  }
  if (ranks == 1) return;
  for (int64_t i = 0; i < size; ++i) x[i] /= static_cast<T>(ranks);
}

}  // namespace

// x = gradient + error; or x += error, without a gradient.
void SumF16(DType type, const uint16_t* gradient, const float* error, float* x,
            int64_t count) {
  Fetch(gradient, 2 * count);
  WithFormat(type, Widening{gradient, x, count});
  SumAll<float>(nullptr, error, x, count);
}
void SumF32(const float* gradient, const float* error, float* x,
            int64_t count) {
  SumAll(gradient, error, x, count);
}
void SumF64(const double* gradient, const double* error, double* x,
            int64_t count) {
  SumAll(gradient, error, x, count);
}

void MeanF32(const uint8_t* in, int64_t stride, int ranks, int64_t size,
             float* x) {
  MeanOfBlock(in, stride, ranks, size, x);
}
void MeanF64(const uint8_t* in, int64_t stride, int ranks, int64_t size,
             double* x) {
  MeanOfBlock(in, stride, ranks, size, x);
}

void EncodeF32(float* x, int64_t count, int64_t size, uint8_t* out) {
  EncodeOne(x, count, size, out);
}
void EncodeF64(double* x, int64_t count, int64_t size, uint8_t* out) {
  EncodeOne(x, count, size, out);
}

void StoreF32(const float* x, float* out, int64_t count, bool stream) {
  CopyRow(x, out, count, stream);
}
void StoreF64(const double* x, double* out, int64_t count, bool stream) {
  CopyRow(x, out, count, stream);
}

// out = code * scale.
void DecodeF16(DType type, const int8_t* codes, float scale, int64_t count,
               uint16_t* out, bool stream) {
  HWY_ALIGN float values[kMaxQuantisedBlock];
  DecodeAll(codes, 1.0f, count, values);
  WithFormat(type, Narrowing{values, out, count, scale, stream});
}
void DecodeF32(const int8_t* codes, float scale, int64_t count, float* out,
               bool stream) {
  if (!stream) return DecodeAll(codes, scale, count, out);
  HWY_ALIGN float values[kMaxQuantisedBlock];
  DecodeAll(codes, scale, count, values);
  CopyRow(values, out, count, true);
}
void DecodeF64(const int8_t* codes, double scale, int64_t count, double* out,
               bool stream) {
  if (!stream) return DecodeAll(codes, scale, count, out);
  HWY_ALIGN double values[kMaxQuantisedBlock];
  DecodeAll(codes, scale, count, values);
  CopyRow(values, out, count, true);
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coxswain {

HWY_EXPORT(SumF16);
HWY_EXPORT(SumF32);
HWY_EXPORT(SumF64);
HWY_EXPORT(MeanF32);
HWY_EXPORT(MeanF64);
HWY_EXPORT(EncodeF32);
HWY_EXPORT(EncodeF64);
HWY_EXPORT(StoreF32);
HWY_EXPORT(StoreF64);
HWY_EXPORT(DecodeF16);
HWY_EXPORT(DecodeF32);
HWY_EXPORT(DecodeF64);

void SumOfRun(const QuantiseRun<float>& run, int64_t offset, const float* error,
              float* x, int64_t count) {
  if (run.gradient == nullptr || run.type == DType::kFloat32) {
    const auto* gradient = static_cast<const float*>(run.gradient);
    if (gradient != nullptr) gradient += offset;
    return HWY_DYNAMIC_DISPATCH(SumF32)(gradient, error, x, count);
  }
  COXSWAIN_CHECK(run.type == DType::kFloat16 || run.type == DType::kBFloat16);
  const auto* gradient = static_cast<const uint16_t*>(run.gradient) + offset;
  HWY_DYNAMIC_DISPATCH(SumF16)(run.type, gradient, error, x, count);
}
void SumOfRun(const QuantiseRun<double>& run, int64_t offset,
              const double* error, double* x, int64_t count) {
  COXSWAIN_CHECK(run.gradient == nullptr || run.type == DType::kFloat64);
  const auto* gradient = static_cast<const double*>(run.gradient);
  if (gradient != nullptr) gradient += offset;
  HWY_DYNAMIC_DISPATCH(SumF64)(gradient, error, x, count);
}

void MeanOfBlocks(const uint8_t* in, int64_t stride, int ranks, int64_t size,
                  float* x) {
  HWY_DYNAMIC_DISPATCH(MeanF32)(in, stride, ranks, size, x);
}
void MeanOfBlocks(const uint8_t* in, int64_t stride, int ranks, int64_t size,
                  double* x) {
  HWY_DYNAMIC_DISPATCH(MeanF64)(in, stride, ranks, size, x);
}

void EncodeBlock(float* x, int64_t count, int64_t size, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeF32)(x, count, size, out);
}
void EncodeBlock(double* x, int64_t count, int64_t size, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(EncodeF64)(x, count, size, out);
}

void StoreBlock(const float* x, float* out, int64_t count, bool stream) {
  HWY_DYNAMIC_DISPATCH(StoreF32)(x, out, count, stream);
}
void StoreBlock(const double* x, double* out, int64_t count, bool stream) {
  HWY_DYNAMIC_DISPATCH(StoreF64)(x, out, count, stream);
}

void DecodeBlock(const uint8_t* block, int64_t count, DType type, char* out,
                 bool stream) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  const auto* codes = reinterpret_cast<const int8_t*>(block + sizeof(scale));
  if (type == DType::kFloat32) {
    auto* to = reinterpret_cast<float*>(out);
    HWY_DYNAMIC_DISPATCH(DecodeF32)(codes, scale, count, to, stream);
  } else if (type == DType::kFloat64) {
    auto* to = reinterpret_cast<double*>(out);
    HWY_DYNAMIC_DISPATCH(DecodeF64)(codes, scale, count, to, stream);
  } else {
    auto* to = reinterpret_cast<uint16_t*>(out);
    HWY_DYNAMIC_DISPATCH(DecodeF16)(type, codes, scale, count, to, stream);
  }
}

void FlushStream() { hwy::FlushStream(); }

}  // namespace coxswain
#endif  // HWY_ONCE
