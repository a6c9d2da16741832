#ifndef COXSWAIN_CLIENT_DEVICE_ELEMENTS_H_
#define COXSWAIN_CLIENT_DEVICE_ELEMENTS_H_

#include <cstdint>
#include <type_traits>

#include "base/element_type.h"
#include "base/float16.h"
#include "base/host_device.h"

// What the programs (client/device/launch.h) of all kernels need of elements:
// how a type is stored and computed with, and how neighbours are moved at once.
// Free of Abseil and gRPC, as are the .cu files.

namespace coxswain {

// A type of elements: memory holds `Stored`, arithmetic uses `Value`.
template <typename T>
struct OwnElement {
  using Stored = T;
  using Value = T;
  COXSWAIN_HOST_DEVICE static T Widen(T stored) { return stored; }
  COXSWAIN_HOST_DEVICE static T Narrow(T value) { return value; }
  COXSWAIN_HOST_DEVICE static bool IsFinite(T stored) {
    // Otherwise NaN.
    return stored - stored == T{0};
  }
};
struct Float16Element {
  using Stored = uint16_t;
  using Value = float;
  COXSWAIN_HOST_DEVICE static float Widen(uint16_t stored) {
    return Float16ToFloat(stored);
  }
  COXSWAIN_HOST_DEVICE static uint16_t Narrow(float value) {
    return FloatToFloat16(value);
  }
  COXSWAIN_HOST_DEVICE static bool IsFinite(uint16_t stored) {
    return (stored & 0x7c00) != 0x7c00;
  }
};
struct BFloat16Element {
  using Stored = uint16_t;
  using Value = float;
  COXSWAIN_HOST_DEVICE static float Widen(uint16_t stored) {
    return BFloat16ToFloat(stored);
  }
  COXSWAIN_HOST_DEVICE static uint16_t Narrow(float value) {
    return FloatToBFloat16(value);
  }
  COXSWAIN_HOST_DEVICE static bool IsFinite(uint16_t stored) {
    return (stored & 0x7f80) != 0x7f80;
  }
};

// Calls act(Element()) with the Element of this type; returns false if there is
// none.
template <class Act>
COXSWAIN_HOST_DEVICE bool WithElement(ElementType type, const Act& act) {
  switch (type) {
    case ElementType::kFloat32:
      act(OwnElement<float>());
      return true;
    case ElementType::kFloat64:
      act(OwnElement<double>());
      return true;
    case ElementType::kFloat16:
      act(Float16Element());
      return true;
    case ElementType::kBFloat16:
      act(BFloat16Element());
      return true;
    default:
      return false;
  }
}

// Calls `act` with the Element whose Value is T.
template <typename T, class Act>
bool WithElementOf(ElementType type, const Act& act) {
  bool found = false;
  WithElement(type, [&](auto element) {
    if constexpr (std::is_same_v<typename decltype(element)::Value, T>) {
      act(element);
      found = true;
    }
  });
  return found;
}

// Returns a float between `value` and zero whose last bit is set if it is not
// exact: rounding it to fewer bits gives the same as rounding `value` at once.
COXSWAIN_HOST_DEVICE inline float ToFloatForRounding(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  const uint32_t bits = FloatBits(nearest);
  const bool away = (back < 0 ? -back : back) > (value < 0 ? -value : value);
  const bool exact = back == value || value != value;
  return FloatFromBits(exact ? bits : (away ? bits - 1 : bits) | 1u);
}
COXSWAIN_HOST_DEVICE inline float ToFloatForRounding(float value) {
  return value;
}

// Bytes that one instruction moves at most, and elements in them.
constexpr int kMovedBytes = 16;
template <typename T>
constexpr int kVector = kMovedBytes / static_cast<int>(sizeof(T));

// Neighbours that are moved with as few instructions as possible, at a multiple
// of its alignment.
template <typename T, int kCount>
struct alignas(kCount < kVector<T> ? kCount * sizeof(T) : kMovedBytes) Pack {
  T at[kCount];

  COXSWAIN_HOST_DEVICE static bool FitsAt(const void* place) {
    return reinterpret_cast<uintptr_t>(place) % alignof(Pack) == 0;
  }
  // Not by memcpy, of which nvcc makes moves of single bytes if it does not
  // see the memory's alignment in the pointer's type.
  COXSWAIN_HOST_DEVICE static Pack Load(const T* from) {
    return *reinterpret_cast<const Pack*>(from);
  }
  COXSWAIN_HOST_DEVICE void Store(T* to) const {
    *reinterpret_cast<Pack*>(to) = *this;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_ELEMENTS_H_
