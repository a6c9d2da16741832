#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_SUMS_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_SUMS_H_

#include <cstdint>

#include "base/host_device.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/low_rank.h"
#include "hooks/kernels/cuda/low_rank_access.h"
#include "hooks/kernels/cuda/low_rank_block_sums.h"

// What follows the products: factors from their partial sums, what raw tensors
// send, and the search for what is not finite.

namespace coxswain {

// Elements of a factor that each thread comes to, one after the other.
constexpr int kSumsOfThread = 4;

// Threads that share the partial sums of an element.
constexpr int SumLanes(int64_t partials) {
  return partials <= 16 ? 1 : partials <= 256 ? 8 : 32;
}
// Elements of a tile.
constexpr int64_t SumsOfTile(int64_t partials) {
  return kSumsOfThread * kLowRankThreads / SumLanes(partials);
}

// Of P, and raw tensors, before the exchange (kProject false), or of Q. Tiles:
// `row` is the first element, `column` the number of partial sums.
template <typename T, class Element, bool kProject>
struct SumsProgram {
  static constexpr int kThreads = kLowRankThreads;
  using Stored = typename Element::Stored;
  struct Shared {
    T sums[kSumsOfThread][kThreads];
  };
  struct Thread {};

  const LowRankTile* tiles;
  int64_t count;  // of tiles
  const DeviceLowRankMatrix<T>* matrices;
  const DeviceRawTensor<T>* raws;
  const T* partials;
  T divisor;
  uint32_t* poisoned;  // is set to 0, unless null

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 2; }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    if (poisoned != nullptr && phase == 0 && at.block == 0 && at.thread == 0) {
      *poisoned = 0;
    }
    if (at.block >= count) return;
    const LowRankTile tile = tiles[at.block];
    if (tile.kind == kRawKind) {
      if (phase == 0) TakeRaw(tile, at.thread);
      return;
    }
    const int lanes = tile.kind;
    if (phase == 0) {
      Add(tile, lanes, at.thread, shared);
    } else {
      Keep(tile, lanes, at.thread, *shared);
    }
  }

 private:
  static COXSWAIN_HOST_DEVICE int64_t
  CountOf(const DeviceLowRankMatrix<T>& matrix) {
    return (kProject ? matrix.m : matrix.n) * matrix.r;
  }

  // Threads lie side by side along the elements, and lanes one below the other.
  COXSWAIN_HOST_DEVICE void Add(const LowRankTile& tile, int lanes, int thread,
                                Shared* shared) const {
    const int64_t count = CountOf(matrices[tile.item]);
    const int wide = kThreads / lanes;
    const T* const from = partials + tile.partial;
    for (int turn = 0; turn < kSumsOfThread; ++turn) {
      const int64_t i = tile.row + turn * wide + thread % wide;
      if (i >= count) return;
      T sum = 0;
      COXSWAIN_UNROLL_4
      for (int64_t part = thread / wide; part < tile.column; part += lanes) {
        sum += from[part * count + i];
      }
      shared->sums[turn][thread] = sum;
    }
  }

  COXSWAIN_HOST_DEVICE void Keep(const LowRankTile& tile, int lanes, int thread,
                                 const Shared& shared) const {
    const int wide = kThreads / lanes;
    if (thread >= wide) return;
    const DeviceLowRankMatrix<T> matrix = matrices[tile.item];
    const int64_t count = CountOf(matrix);
    for (int turn = 0; turn < kSumsOfThread; ++turn) {
      const int64_t i = tile.row + turn * wide + thread;
      if (i >= count) return;
      T sum = shared.sums[turn][thread];
      for (int lane = 1; lane < lanes; ++lane) {
        sum += shared.sums[turn][lane * wide + thread];
      }
      if (matrix.x != nullptr) sum = Guarded(sum);
      if (!kProject) {
        matrix.p[i] = sum / divisor;
        continue;
      }
      if (matrix.own_q != nullptr) matrix.own_q[i] = sum;
      matrix.q[i] = sum / divisor;
    }
  }

  COXSWAIN_HOST_DEVICE void TakeRaw(const LowRankTile& tile, int thread) const {
    const DeviceRawTensor<T> raw = raws[tile.item];
    const auto* const gradient = static_cast<const Stored*>(raw.gradient);
    const int64_t last = tile.row + kRawTile;
    const int64_t end = last < raw.count ? last : raw.count;
    COXSWAIN_UNROLL_4
    for (int64_t i = tile.row + thread; i < end; i += kThreads) {
      T value = Element::Widen(gradient[i]);
      if (raw.error != nullptr) value += raw.error[i];
      if (raw.x != nullptr) raw.x[i] = value;
      raw.sent[i] = value / divisor;
    }
  }
};

template <typename T>
struct CheckProgram {
  static constexpr int kThreads = kLowRankThreads;
  static constexpr int kOfThread = 8;
  struct Shared {};
  struct Thread {};

  T* values;
  int64_t count;
  T divisor;
  uint32_t* poisoned;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }

  COXSWAIN_HOST_DEVICE void Run(int, const BlockPlace& at, Thread*,
                                Shared*) const {
    const int64_t begin = at.block * (kThreads * kOfThread) + at.thread;
    bool finite = true;
    COXSWAIN_UNROLL
    for (int turn = 0; turn < kOfThread; ++turn) {
      const int64_t i = begin + turn * kThreads;
      if (i >= count) break;
      const T value = values[i];
      // Not so of an infinity or a NaN.
      finite &= value - value == 0;
      if (divisor != 1) values[i] = value / divisor;
    }
    // All threads that write it write the same.
    if (!finite) *poisoned = 1;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_SUMS_H_
