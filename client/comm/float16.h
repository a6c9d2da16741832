#ifndef COXSWAIN_CLIENT_COMM_FLOAT16_H_
#define COXSWAIN_CLIENT_COMM_FLOAT16_H_

#include <cstdint>
#include <cstring>

// Conversions between float and the two 16-bit floats, which travel as their
// bit patterns. To 16 bits the value is rounded to the nearest, ties to even;
// a NaN stays a (quiet) NaN. Pure functions.

namespace coxswain {

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float FloatFromBFloat16(uint16_t bits) {
  return FloatOf(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = BitsOf(value);
  // Half a unit of the last place, less one bit unless that place is odd.
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x0040;
  return static_cast<uint16_t>(value != value ? quiet_nan : rounded);
}

inline float FloatFromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  constexpr uint32_t kInfinity = 0x1fu << 23;
  if (magnitude >= kInfinity) {
    return FloatOf(sign | 0x7f800000u | (magnitude - kInfinity));
  }
  // Read as a float the exponent is too small by the difference of the
  // biases, 112; a multiplication mends that for subnormal values too.
  const float scaled = FloatOf(magnitude) * FloatOf((127u + 112u) << 23);
  return FloatOf(BitsOf(scaled) | sign);
}

inline uint16_t Float16FromFloat(float value) {
  const uint32_t bits = BitsOf(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;  // NaN
  // 65520 and above round to infinity.
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude < (113u << 23)) {
    // Subnormal: adding 0.5 leaves the float adder to round at 2^-24.
    const float shifted = FloatOf(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(BitsOf(shifted) - BitsOf(0.5f));
  }
  const uint32_t rebiased = magnitude - (112u << 23);
  return sign | static_cast<uint16_t>(
                    (rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13);
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_FLOAT16_H_
