#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_ARITHMETIC_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_ARITHMETIC_H_

#include <cstdint>
#include <cstring>

#include "base/float16.h"
#include "base/host_device.h"

// The arithmetic of hooks/kernels/quantise.h for one element, on the CPU and on
// a GPU alike. To be compiled without contraction to fused multiply-adds.

namespace coxswain {

template <typename T>
struct QuantiseConstants;
// kRound is 1.5 * 2^23, or 2^52: adding it rounds to an integer, which then
// stands in the lowest bits.
template <>
struct QuantiseConstants<float> {
  using Bits = uint32_t;
  static constexpr Bits kMagnitude = 0x7fffffff;
  static constexpr float kRound = 0x1.8p23f;
};
template <>
struct QuantiseConstants<double> {
  using Bits = uint64_t;
  static constexpr Bits kMagnitude = 0x7fffffffffffffff;
  static constexpr double kRound = 0x1.8p52;
};

// Without their signs floats order as these do, an infinity and the NaNs
// coming last.
template <typename T>
COXSWAIN_HOST_DEVICE typename QuantiseConstants<T>::Bits MagnitudeBits(
    T value) {
  typename QuantiseConstants<T>::Bits bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & QuantiseConstants<T>::kMagnitude;
}

COXSWAIN_HOST_DEVICE inline bool IsFiniteScale(float scale) {
  return (FloatBits(scale) & 0x7f800000u) != 0x7f800000u;
}

// The scale of a block whose largest magnitude has these bits.
template <typename T>
COXSWAIN_HOST_DEVICE float QuantisedScale(
    typename QuantiseConstants<T>::Bits largest_bits) {
  T largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  const float scale = static_cast<float>(largest / T{127});
  // 127 times a scale that was rounded up may overflow.
  if (!IsFiniteScale(scale * 127.0f)) return FloatFromBits(0x7fc00000u);
  return scale < 0x1p-126f ? 0.0f : scale;
}

// Takes the code out of x, and returns it.
template <typename T>
COXSWAIN_HOST_DEVICE uint8_t EncodeElement(T* x, T inverse, T scale) {
  constexpr T kRound = QuantiseConstants<T>::kRound;
  const T rounded = *x * inverse + kRound;
  typename QuantiseConstants<T>::Bits bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  *x -= (rounded - kRound) * scale;
  return static_cast<uint8_t>(bits);
}

template <typename T>
COXSWAIN_HOST_DEVICE T DecodeElement(uint8_t code, T scale) {
  return static_cast<T>(static_cast<int8_t>(code)) * scale;
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_ARITHMETIC_H_
