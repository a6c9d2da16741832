#ifndef COXSWAIN_BASE_FLOAT16_H_
#define COXSWAIN_BASE_FLOAT16_H_

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace coxswain {

// Conversions of one element between float and the two 16-bit formats, which
// are held as bit patterns: float16 (IEEE 754 binary16) and bfloat16 (the
// upper half of a float). Narrowing rounds to nearest, ties to even; what is
// too large becomes an infinity, and a NaN stays a NaN. Every branch is a
// choice between two values, so that a loop over these becomes vector code.

COXSWAIN_HOST_DEVICE inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

COXSWAIN_HOST_DEVICE inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

COXSWAIN_HOST_DEVICE inline uint16_t FloatToFloat16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: change the exponent's bias from 127 to 15, then round 13
  // bits away; a carry runs into the exponent as it should.
  const uint32_t normal =
      (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: one unit in the last place of 0.5f is the smallest
  // float16, so the addition does the rounding.
  const uint32_t subnormal =
      FloatBits(FloatFromBits(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65520 and above
  result =
      magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : result;
  return static_cast<uint16_t>(sign | result);
}

COXSWAIN_HOST_DEVICE inline float Float16ToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  // A subnormal is its bits times 2^-24.
  const uint32_t subnormal =
      FloatBits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t result = magnitude < 0x400u ? subnormal : normal;
  result = magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : result;
  return FloatFromBits(sign | result);
}

COXSWAIN_HOST_DEVICE inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan
                                                                  : rounded);
}

COXSWAIN_HOST_DEVICE inline float BFloat16ToFloat(uint16_t brain) {
  return FloatFromBits(static_cast<uint32_t>(brain) << 16);
}

}  // namespace coxswain

#endif  // COXSWAIN_BASE_FLOAT16_H_
