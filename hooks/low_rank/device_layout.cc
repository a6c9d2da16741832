#include "hooks/low_rank/device_layout.h"

#include <algorithm>

namespace coxswain {
namespace {

constexpr int64_t kAlignment = 256;  // bytes

template <typename T>
int64_t Aligned(int64_t count) {
  constexpr int64_t kElements = kAlignment / sizeof(T);
  return (count + kElements - 1) / kElements * kElements;
}

template <typename T>
void CopyTo(const std::vector<T>& from, T* to) {
  std::copy(from.begin(), from.end(), to);
}

}  // namespace

template <typename T>
DeviceLayout MakeDeviceLayout(const std::vector<LowRankTensor<T>*>& tensors,
                              const LowRankConfig& config) {
  DeviceLayout layout;
  layout.places.resize(tensors.size());
  for (const bool raw : {true, false}) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const LowRankTensor<T>& tensor = *tensors[i];
      if (tensor.raw() != raw) continue;
      layout.places[i].first = layout.first_count;
      layout.places[i].second = layout.second_count;
      layout.first_count += raw ? tensor.count : tensor.n * tensor.r;
      layout.second_count += tensor.m * tensor.r;
    }
  }
  int64_t end = 0;
  const auto take = [&end](int64_t count) {
    const int64_t at = end;
    end += Aligned<T>(count);
    return at;
  };
  layout.first = take(layout.first_count);
  layout.second = take(layout.second_count);
  layout.error_q = config.pytorch ? layout.second : take(layout.second_count);
  layout.start = config.warm_start ? layout.second : take(layout.second_count);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->keeps_error) layout.places[i].x = take(tensors[i]->count);
  }
  layout.count = end;
  return layout;
}

template <typename T>
void WriteSide(const DeviceLayout& layout,
               const std::vector<LowRankTensor<T>*>& tensors, T* side) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const LowRankTensor<T>& tensor = *tensors[i];
    const LowRankMemory<T>& error = tensor.error();
    const DeviceLayout::Place& place = layout.places[i];
    CopyTo(tensor.now.q, side + layout.start + place.second);
    if (place.x < 0 || !error.has_error) continue;
    std::copy_n(error.x.data(), tensor.count, side + place.x);
    CopyTo(error.error_p, side + layout.first + place.first);
    CopyTo(error.error_q, side + layout.error_q + place.second);
  }
}

template <typename T>
void ReadSide(const DeviceLayout& layout, const T* side, bool warm_start,
              const std::vector<LowRankTensor<T>*>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    LowRankTensor<T>& tensor = *tensors[i];
    LowRankMemory<T>& now = tensor.now;
    const DeviceLayout::Place& place = layout.places[i];
    const int64_t q_count = tensor.m * tensor.r;
    now.q.clear();
    if (warm_start && !tensor.raw()) {
      const T* q = side + layout.second + place.second;
      now.q.assign(q, q + q_count);
    }
    now.has_error = tensor.keeps_error;
    if (place.x < 0) continue;
    now.x.Allocate(tensor.count);
    std::copy_n(side + place.x, tensor.count, now.x.data());
    if (tensor.raw()) continue;
    const T* p = side + layout.first + place.first;
    const T* q = side + layout.error_q + place.second;
    now.error_p.assign(p, p + tensor.n * tensor.r);
    now.error_q.assign(q, q + q_count);
  }
}

#define COXSWAIN_DEVICE_LAYOUT_OF(T)                                     \
  template DeviceLayout MakeDeviceLayout<T>(                             \
      const std::vector<LowRankTensor<T>*>&, const LowRankConfig&);      \
  template void WriteSide<T>(const DeviceLayout&,                        \
                             const std::vector<LowRankTensor<T>*>&, T*); \
  template void ReadSide<T>(const DeviceLayout&, const T*, bool,         \
                            const std::vector<LowRankTensor<T>*>&)
COXSWAIN_DEVICE_LAYOUT_OF(float);
COXSWAIN_DEVICE_LAYOUT_OF(double);
#undef COXSWAIN_DEVICE_LAYOUT_OF

}  // namespace coxswain
