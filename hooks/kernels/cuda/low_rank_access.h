#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_ACCESS_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_ACCESS_H_

#include <cstdint>
#include <limits>

#include "base/host_device.h"
#include "client/device/elements.h"
#include "hooks/kernels/cuda/low_rank.h"
#include "hooks/kernels/cuda/low_rank_block_sums.h"

// How the programs of low_rank.h walk over a matrix: which thread has which
// elements, how they are moved, and sums over a block's threads.

namespace coxswain {

// Threads have kVector<T> columns at a time, and as many rows.

// Columns of a row that a thread of TakeProgram comes to.
constexpr int kColumnsOfThread = 16;
// Rows that a thread of ProjectProgram and FinishProgram comes to.
constexpr int kRowsOfThread = 16;
// Elements of a raw tensor that a block comes to.
constexpr int kRawTile = 4096;
// The kind of their tiles. Those of a matrix: log2 of the threads side by side.
constexpr int kRawKind = -1;

// `lanes` threads side by side in a row; 256 / lanes groups of them one below
// the other.
struct Lanes {
  COXSWAIN_HOST_DEVICE Lanes(int log, int thread)
      : lanes(1 << log),
        groups(kLowRankThreads >> log),
        lane(thread & ((1 << log) - 1)),
        group(thread >> log) {}
  int lanes, groups, lane, group;
};

// Where a thread's columns stand: neighbours if m allows for whole vectors,
// otherwise `lanes` apart, so that a warp still reads a stretch of memory.
template <typename T>
struct ColumnsOf {
  COXSWAIN_HOST_DEVICE ColumnsOf(int64_t m, const Lanes& at)
      : whole(m % kVector<T> == 0),
        first(whole ? at.lane * kVector<T> : at.lane),
        step(whole ? 1 : at.lanes) {}
  bool whole;
  int first, step;
};

// kVector<T> elements.
template <typename T, class Element>
using VectorOf = Pack<typename Element::Stored, kVector<T>>;

// Elements first, first + step, ... below `end`, others as 0; if `aligned`,
// all are there and side by side.
template <typename T, class Element>
COXSWAIN_HOST_DEVICE inline void LoadGroup(const typename Element::Stored* from,
                                           int64_t first, int step, int64_t end,
                                           bool aligned, T* to) {
  using Stored = typename Element::Stored;
  VectorOf<T, Element> group;
  if (aligned) {
    group = VectorOf<T, Element>::Load(from + first);
  } else {
    COXSWAIN_UNROLL
    for (int e = 0; e < kVector<T>; ++e) {
      const int64_t i = first + int64_t{step} * e;
      group.at[e] = i < end ? from[i] : Stored{0};
    }
  }
  COXSWAIN_UNROLL
  for (int e = 0; e < kVector<T>; ++e) to[e] = Element::Widen(group.at[e]);
}

template <typename T, class Element>
COXSWAIN_HOST_DEVICE inline void StoreGroup(const T* from, int64_t first,
                                            int step, int64_t end, bool aligned,
                                            typename Element::Stored* to) {
  VectorOf<T, Element> group;
  COXSWAIN_UNROLL
  for (int e = 0; e < kVector<T>; ++e) group.at[e] = Element::Narrow(from[e]);
  if (aligned) return group.Store(to + first);
  COXSWAIN_UNROLL
  for (int e = 0; e < kVector<T>; ++e) {
    const int64_t i = first + int64_t{step} * e;
    if (i < end) to[i] = group.at[e];
  }
}

template <typename T>
constexpr T kNotANumber = std::numeric_limits<T>::quiet_NaN();

// (0 + 1) + (2 + 3), of kCount <= 4 products.
template <int kCount, typename T>
COXSWAIN_HOST_DEVICE inline T SumOfFew(const T* a, const T* b, int stride_b) {
  T sum = a[0] * b[0];
  if constexpr (kCount >= 2) sum += a[1] * b[stride_b];
  if constexpr (kCount == 3) sum += a[2] * b[2 * stride_b];
  if constexpr (kCount == 4) {
    sum += a[2] * b[2 * stride_b] + a[3] * b[3 * stride_b];
  }
  return sum;
}

// A factor beyond this poisons the step: the error that follows from it may
// overflow although the ranks' sum does not.
template <typename T>
constexpr T kLargestFactor = std::numeric_limits<T>::max() / 256;
template <typename T>
COXSWAIN_HOST_DEVICE inline T Guarded(T value) {
  const T size = value < 0 ? -value : value;
  return size > kLargestFactor<T> ? kNotANumber<T> : value;
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_ACCESS_H_
