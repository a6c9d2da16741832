#ifndef COXSWAIN_HOOKS_LOW_RANK_DEVICE_LAYOUT_H_
#define COXSWAIN_HOOKS_LOW_RANK_DEVICE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// Where what a bucket's tensors remember stands in one run of a device's
// memory, a "side": two of them take turns as now and next (LowRankMemory).
// All of a side is uploaded by one copy, and fetched by one. Counts and places
// are in elements, places from the start of the side.
//
//   first    raw elements, then each P: what the first collective sends
//   second   each Q: what the second one sends, and so the mean
//   error_q  each rank's own Q, as its error has it; with mode=pytorch that is
//            the mean, and this is `second`
//   start    the factors Q that the next step begins with, where they are not
//            those of this one (`second`): zero, for which they are drawn, or
//            what was loaded
//   X        of each tensor that keeps an error, aligned to 256 bytes
struct DeviceLayout {
  struct Place {
    int64_t first = 0;   // from `first` on: raw elements, or P (n x r)
    int64_t second = 0;  // from `second`, `error_q` and `start` on: Q (m x r)
    int64_t x = -1;      // from the side's start on; -1: keeps no error
  };

  std::vector<Place> places;  // by the bucket's gradients
  int64_t first = 0;
  int64_t second = 0;
  int64_t error_q = 0;
  int64_t start = 0;
  int64_t first_count = 0;
  int64_t second_count = 0;
  int64_t count = 0;  // of a side
};

template <typename T>
DeviceLayout MakeDeviceLayout(const std::vector<LowRankTensor<T>*>& tensors,
                              const LowRankConfig& config);

// Writes what the tensors remember (`now`) to `side`, a whole one, which is
// zero: an error of zero, that is, and factors that are to be drawn.
template <typename T>
void WriteSide(const DeviceLayout& layout,
               const std::vector<LowRankTensor<T>*>& tensors, T* side);

// The reverse, for a side that a step has ended with.
template <typename T>
void ReadSide(const DeviceLayout& layout, const T* side, bool warm_start,
              const std::vector<LowRankTensor<T>*>& tensors);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_DEVICE_LAYOUT_H_
