#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/float16.h"
#include "hooks/kernels/kernels.h"

namespace coxswain {
namespace {

// A float between `value` and zero whose last bit is set if it is not exact.
// Rounding it on to fewer bits gives what rounding `value` at once would.
float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const uint32_t bits = FloatBits(nearest);
  const uint32_t truncated =
      std::fabs(back) > std::fabs(value) ? bits - 1 : bits;
  const bool exact = back == value || value != value;
  return FloatFromBits(exact ? bits : truncated | 1u);
}

inline float ToFloat(float value) { return value; }
inline float ToFloat(double value) { return RoundToOdd(value); }

template <uint16_t (*Narrow)(float), typename T>
void DivideNarrow(const T* in, uint16_t* out, int64_t count, T divisor) {
  for (int64_t i = 0; i < count; ++i) out[i] = Narrow(ToFloat(in[i] / divisor));
}

template <float (*WidenOne)(uint16_t), typename T>
void Widen(const uint16_t* in, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = WidenOne(in[i]);
}

template <typename T>
void DivideAll(T* values, int64_t count, T divisor) {
  for (int64_t i = 0; i < count; ++i) values[i] /= divisor;
}

template <typename T>
void AddAll(T* values, const T* other, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] += other[i];
}

template <typename T>
int64_t CountNotFinite(const T* values, int64_t count) {
  int64_t found = 0;
  // x - x is 0 for a finite x, and NaN otherwise.
  for (int64_t i = 0; i < count; ++i) {
    found += values[i] - values[i] == T{0} ? 0 : 1;
  }
  return found;
}

}  // namespace

void Divide(float* values, int64_t count, float divisor) {
  DivideAll(values, count, divisor);
}
void Divide(double* values, int64_t count, double divisor) {
  DivideAll(values, count, divisor);
}
void DivideFloat16(uint16_t* values, int64_t count, float divisor) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = FloatToFloat16(Float16ToFloat(values[i]) / divisor);
  }
}
void DivideBFloat16(uint16_t* values, int64_t count, float divisor) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = FloatToBFloat16(BFloat16ToFloat(values[i]) / divisor);
  }
}

void DivideToFloat16(const float* in, uint16_t* out, int64_t count,
                     float divisor) {
  DivideNarrow<FloatToFloat16>(in, out, count, divisor);
}
void DivideToFloat16(const double* in, uint16_t* out, int64_t count,
                     double divisor) {
  DivideNarrow<FloatToFloat16>(in, out, count, divisor);
}
void DivideToBFloat16(const float* in, uint16_t* out, int64_t count,
                      float divisor) {
  DivideNarrow<FloatToBFloat16>(in, out, count, divisor);
}
void DivideToBFloat16(const double* in, uint16_t* out, int64_t count,
                      double divisor) {
  DivideNarrow<FloatToBFloat16>(in, out, count, divisor);
}

void WidenFloat16(const uint16_t* in, float* out, int64_t count) {
  Widen<Float16ToFloat>(in, out, count);
}
void WidenFloat16(const uint16_t* in, double* out, int64_t count) {
  Widen<Float16ToFloat>(in, out, count);
}
void WidenBFloat16(const uint16_t* in, float* out, int64_t count) {
  Widen<BFloat16ToFloat>(in, out, count);
}
void WidenBFloat16(const uint16_t* in, double* out, int64_t count) {
  Widen<BFloat16ToFloat>(in, out, count);
}

void Add(float* values, const float* other, int64_t count) {
  AddAll(values, other, count);
}
void Add(double* values, const double* other, int64_t count) {
  AddAll(values, other, count);
}

int64_t CountNonFinite(const float* values, int64_t count) {
  return CountNotFinite(values, count);
}
int64_t CountNonFinite(const double* values, int64_t count) {
  return CountNotFinite(values, count);
}

}  // namespace coxswain
