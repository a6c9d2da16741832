#ifndef COXSWAIN_HOOKS_INT8_INT8_ERRORS_H_
#define COXSWAIN_HOOKS_INT8_INT8_ERRORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "client/device/buffer.h"
#include "client/device/tensor.h"

namespace coxswain {

// What the int8 hook has not sent yet of one parameter; T is the type it
// computes in.
template <typename T>
struct Int8Errors {
  // E1: of this rank's gradient; empty means zero.
  std::vector<T> local;
  // E2: of the average, in the elements from `begin` on, which this rank was
  // the last to quantise; no other rank has one there.
  int64_t begin = 0;
  std::vector<T> average;
};

// E1 + W E2 of `count` elements: kept as E1 alone, it gives later sums over W
// ranks the same share. Empty if both errors are.
template <typename T>
std::vector<T> Folded(const Int8Errors<T>& errors, int64_t count,
                      int world_size) {
  std::vector<T> folded = errors.local;
  if (errors.average.empty()) return folded;
  folded.resize(static_cast<size_t>(count), T{0});
  T* to = folded.data() + errors.begin;
  for (const T value : errors.average) {
    *to++ += static_cast<T>(world_size) * value;
  }
  return folded;
}

// The same in a GPU's memory, of which other parameters of the bucket may have
// parts.
template <typename T>
struct Int8DeviceErrors {
  std::shared_ptr<DeviceBuffer> memory;
  T* local = nullptr;  // null means zero
  int64_t begin = 0;
  T* average = nullptr;
  int64_t average_count = 0;
};

// What the hook knows about one parameter. An exchange writes `staged`, Commit
// swaps it in.
template <typename T>
struct Int8Parameter {
  std::vector<int64_t> shape;
  int64_t count = 0;
  Int8Errors<T> current;
  Int8Errors<T> staged;
  bool is_staged = false;  // `staged` holds a step's outcome

  // Of a parameter whose bucket is on a GPU, in place of those above.
  Int8DeviceErrors<T> device_current;
  Int8DeviceErrors<T> device_staged;
  bool on_device = false;         // of the current ones
  bool staged_on_device = false;  // of those in `is_staged`
};

// By name.
template <typename T>
using Int8Parameters = std::map<std::string, Int8Parameter<T>>;

template <typename T>
Int8Parameters<T> WithoutErrors(const Int8Parameters<T>& parameters) {
  Int8Parameters<T> without;
  for (const auto& [name, one] : parameters) {
    without[name].shape = one.shape;
    without[name].count = one.count;
  }
  return without;
}

// Those that are computed in float and those in double.
using AllInt8Parameters =
    std::tuple<Int8Parameters<float>, Int8Parameters<double>>;

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_INT8_INT8_ERRORS_H_
