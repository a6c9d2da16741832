#include "hooks/kernels/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "hooks/kernels/parallel.h"

// Highway's order: this file once for each target, then the vectors.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/kernels/quantise.cc"
#include "hwy/foreach_target.h"  // NOLINT
#include "hooks/kernels/vectors-inl.h"
// clang-format on

// The loops are plain ones that the compiler vectorises for each target: they
// compute each element for itself, so vectors of any width give the same bits.
HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {
namespace {

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
HWY_INLINE T SumAll(const T* HWY_RESTRICT gradient, const T* HWY_RESTRICT error,
                    T* HWY_RESTRICT x, int64_t count) {
  if (error == nullptr) {
    for (int64_t i = 0; i < count; ++i) x[i] = gradient[i];
  } else {
    for (int64_t i = 0; i < count; ++i) x[i] = gradient[i] + error[i];
  }
  return Largest(x, count);
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
  template <class Format>
  HWY_INLINE void Run() const {
    NarrowRow<Format>(in, out, count, scale, false);
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

}  // namespace

// x = gradient + error; returns the largest magnitude.
float SumF16(DType type, const uint16_t* gradient, const float* error, float* x,
             int64_t count) {
  WithFormat(type, Widening{gradient, x, count});
  for (int64_t i = 0; error != nullptr && i < count; ++i) x[i] += error[i];
  return Largest(x, count);
}
float SumF32(const float* gradient, const float* error, float* x,
             int64_t count) {
  return SumAll(gradient, error, x, count);
}
double SumF64(const double* gradient, const double* error, double* x,
              int64_t count) {
  return SumAll(gradient, error, x, count);
}

// Writes the codes, and leaves in x what they leave out.
void EncodeF32(float* x, int64_t count, float scale, int8_t* codes) {
  EncodeAll(x, count, scale, codes);
}
void EncodeF64(double* x, int64_t count, double scale, int8_t* codes) {
  EncodeAll(x, count, scale, codes);
}

// sum += code * scale.
void AccumulateF32(const int8_t* codes, float scale, int64_t count,
                   float* sum) {
  AccumulateAll(codes, scale, count, sum);
}
void AccumulateF64(const int8_t* codes, double scale, int64_t count,
                   double* sum) {
  AccumulateAll(codes, scale, count, sum);
}

// out = code * scale.
void DecodeF16(DType type, const int8_t* codes, float scale, int64_t count,
               uint16_t* out) {
  float values[kMaxQuantisedBlock];
  DecodeAll(codes, 1.0f, count, values);
  WithFormat(type, Narrowing{values, out, count, scale});
}
void DecodeF32(const int8_t* codes, float scale, int64_t count, float* out) {
  DecodeAll(codes, scale, count, out);
}
void DecodeF64(const int8_t* codes, double scale, int64_t count, double* out) {
  DecodeAll(codes, scale, count, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coxswain {
namespace {

HWY_EXPORT(SumF16);
HWY_EXPORT(SumF32);
HWY_EXPORT(SumF64);
HWY_EXPORT(EncodeF32);
HWY_EXPORT(EncodeF64);
HWY_EXPORT(AccumulateF32);
HWY_EXPORT(AccumulateF64);
HWY_EXPORT(DecodeF16);
HWY_EXPORT(DecodeF32);
HWY_EXPORT(DecodeF64);

constexpr int64_t kScaleBytes = sizeof(float);

float ScaleOf(const uint8_t* block) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  return scale;
}

const int8_t* CodesOf(const uint8_t* block) {
  return reinterpret_cast<const int8_t*>(block + kScaleBytes);
}

template <typename T>
float ScaleFor(T largest) {
  const float scale = static_cast<float>(largest / T{127});
  // 127 times a scale that was rounded up may overflow.
  if (!std::isfinite(scale * 127)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return scale < std::numeric_limits<float>::min() ? 0.0f : scale;
}

float SumRun(const QuantiseRun<float>& run, int64_t offset, const float* error,
             float* x, int64_t count) {
  if (run.type == DType::kFloat32) {
    const float* gradient = static_cast<const float*>(run.gradient) + offset;
    return HWY_DYNAMIC_DISPATCH(SumF32)(gradient, error, x, count);
  }
  COXSWAIN_CHECK(run.type == DType::kFloat16 || run.type == DType::kBFloat16);
  const auto* gradient = static_cast<const uint16_t*>(run.gradient) + offset;
  return HWY_DYNAMIC_DISPATCH(SumF16)(run.type, gradient, error, x, count);
}
double SumRun(const QuantiseRun<double>& run, int64_t offset,
              const double* error, double* x, int64_t count) {
  COXSWAIN_CHECK(run.type == DType::kFloat64);
  const double* gradient = static_cast<const double*>(run.gradient) + offset;
  return HWY_DYNAMIC_DISPATCH(SumF64)(gradient, error, x, count);
}

void Encode(float* x, int64_t count, float scale, int8_t* codes) {
  HWY_DYNAMIC_DISPATCH(EncodeF32)(x, count, scale, codes);
}
void Encode(double* x, int64_t count, float scale, int8_t* codes) {
  HWY_DYNAMIC_DISPATCH(EncodeF64)(x, count, scale, codes);
}

void Accumulate(const uint8_t* block, int64_t count, float* sum) {
  HWY_DYNAMIC_DISPATCH(AccumulateF32)
  (CodesOf(block), ScaleOf(block), count, sum);
}
void Accumulate(const uint8_t* block, int64_t count, double* sum) {
  HWY_DYNAMIC_DISPATCH(AccumulateF64)
  (CodesOf(block), ScaleOf(block), count, sum);
}

void Decode(const uint8_t* block, int64_t count, DType type, char* out) {
  const int8_t* codes = CodesOf(block);
  const float scale = ScaleOf(block);
  if (type == DType::kFloat32) {
    auto* to = reinterpret_cast<float*>(out);
    HWY_DYNAMIC_DISPATCH(DecodeF32)(codes, scale, count, to);
  } else if (type == DType::kFloat64) {
    auto* to = reinterpret_cast<double*>(out);
    HWY_DYNAMIC_DISPATCH(DecodeF64)(codes, scale, count, to);
  } else {
    auto* to = reinterpret_cast<uint16_t*>(out);
    HWY_DYNAMIC_DISPATCH(DecodeF16)(type, codes, scale, count, to);
  }
}

// Larger of two magnitudes, a NaN being the largest.
template <typename T>
T Larger(T a, T b) {
  return b > a || b != b ? b : a;
}

// Where in a list of runs the next block begins.
struct Place {
  size_t run = 0;
  int64_t offset = 0;
};

// Calls visit(run, offset in the run, offset in the block, count) for the
// pieces of runs that make up the block of `size` elements at `place`. Returns
// where the next one begins.
template <typename T, typename Visit>
Place ForEachPiece(const std::vector<QuantiseRun<T>>& runs, Place place,
                   int64_t size, const Visit& visit) {
  for (int64_t filled = 0; filled < size && place.run < runs.size();) {
    const QuantiseRun<T>& run = runs[place.run];
    const int64_t count = std::min(size - filled, run.count - place.offset);
    if (count > 0) visit(run, place.offset, filled, count);
    filled += count;
    place.offset += count;
    if (place.offset == run.count) place = {place.run + 1, 0};
  }
  return place;
}

template <typename T>
Place PlaceOf(const std::vector<QuantiseRun<T>>& runs, int64_t element) {
  Place place;
  while (place.run < runs.size() && element >= runs[place.run].count) {
    element -= runs[place.run++].count;
  }
  place.offset = place.run < runs.size() ? element : 0;
  return place;
}

// One block, which stays in the cache between the two passes over it.
template <typename T>
Place QuantiseBlock(const std::vector<QuantiseRun<T>>& runs, Place place,
                    int64_t size, uint8_t* out) {
  T unkept[kMaxQuantisedBlock];
  const auto x_of = [&unkept](const QuantiseRun<T>& run, int64_t offset,
                              int64_t filled) {
    return run.remainder != nullptr ? run.remainder + offset : unkept + filled;
  };
  T largest{0};
  int64_t end = 0;
  const auto sum = [&](const QuantiseRun<T>& run, int64_t offset,
                       int64_t filled, int64_t count) {
    const T* error = run.error == nullptr ? nullptr : run.error + offset;
    largest = Larger(
        largest, SumRun(run, offset, error, x_of(run, offset, filled), count));
    end = filled + count;
  };
  ForEachPiece(runs, place, size, sum);
  const float scale = ScaleFor(largest);
  std::memcpy(out, &scale, sizeof(scale));
  auto* codes = reinterpret_cast<int8_t*>(out + kScaleBytes);
  const bool zero = !(scale > 0);
  std::fill_n(codes + (zero ? 0 : end), size - (zero ? 0 : end), int8_t{0});
  const auto encode = [&](const QuantiseRun<T>& run, int64_t offset,
                          int64_t filled, int64_t count) {
    if (zero) return;
    Encode(x_of(run, offset, filled), count, scale, codes + filled);
  };
  return ForEachPiece(runs, place, size, encode);
}

}  // namespace

template <typename T>
void Quantise(const std::vector<QuantiseRun<T>>& runs, int64_t size,
              int64_t blocks, uint8_t* out) {
  COXSWAIN_CHECK(size >= 1 && size <= kMaxQuantisedBlock);
  constexpr int64_t kBytes = 3 * sizeof(T) + 1;  // of an element
  const auto range = [&](int64_t begin, int64_t end) {
    Place place = PlaceOf(runs, begin * size);
    for (int64_t block = begin; block < end; ++block) {
      place =
          QuantiseBlock(runs, place, size, out + QuantisedBytes(block, size));
    }
  };
  RunRanges(blocks, 1, blocks * size * kBytes, range);
}

template <typename T>
void MeanOfQuantised(const uint8_t* in, int64_t stride, int ranks, int64_t size,
                     int64_t blocks, T* mean) {
  const auto range = [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      T* sum = mean + block * size;
      std::fill_n(sum, size, T{0});
      for (int rank = 0; rank < ranks; ++rank) {
        Accumulate(in + rank * stride + QuantisedBytes(block, size), size, sum);
      }
      for (int64_t i = 0; i < size; ++i) sum[i] /= static_cast<T>(ranks);
    }
  };
  const int64_t bytes = static_cast<int64_t>(sizeof(T)) + ranks;
  RunRanges(blocks, 1, blocks * size * bytes, range);
}

void Dequantise(const uint8_t* in, int64_t size, int64_t count, void* out,
                DType type) {
  COXSWAIN_CHECK(size >= 1 && size <= kMaxQuantisedBlock);
  const auto width = static_cast<int64_t>(SizeOf(type));
  const auto range = [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * size;
      Decode(in + QuantisedBytes(block, size), std::min(size, count - at), type,
             static_cast<char*>(out) + at * width);
    }
  };
  RunRanges((count + size - 1) / size, 1, count * (width + 1), range);
}

bool QuantisedIsFinite(const uint8_t* in, int64_t size, int64_t blocks) {
  bool finite = true;
  for (int64_t block = 0; block < blocks; ++block) {
    finite = finite && std::isfinite(ScaleOf(in + QuantisedBytes(block, size)));
  }
  return finite;
}

template void Quantise<float>(const std::vector<QuantiseRun<float>>&, int64_t,
                              int64_t, uint8_t*);
template void Quantise<double>(const std::vector<QuantiseRun<double>>&, int64_t,
                               int64_t, uint8_t*);
template void MeanOfQuantised<float>(const uint8_t*, int64_t, int, int64_t,
                                     int64_t, float*);
template void MeanOfQuantised<double>(const uint8_t*, int64_t, int, int64_t,
                                      int64_t, double*);

}  // namespace coxswain
#endif  // HWY_ONCE
