#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_PROJECT_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_PROJECT_H_

#include <cstdint>

#include "base/host_device.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/low_rank.h"
#include "hooks/kernels/cuda/low_rank_access.h"
#include "hooks/kernels/cuda/low_rank_block_sums.h"

// The programs whose threads have kVector columns each and walk down up to
// kRowsOfThread rows: transpose(X) P, and P transpose(Q).

namespace coxswain {

// The sums of transpose(X) P over the rows of a tile. kWidth, kMany: as in
// TakeProgram.
template <typename T, class Element, int kWidth, bool kMany>
struct ProjectProgram {
  static constexpr int kThreads = kLowRankThreads;
  static constexpr int kTogether = 4;  // rows on their way at a time
  using Stored = typename Element::Stored;
  using Shared = BlockSums<T, kVector<T> * kWidth>;
  struct Thread {};

  const LowRankTile* tiles;
  const DeviceLowRankMatrix<T>* matrices;
  T* partials;
  int64_t rank;

  COXSWAIN_HOST_DEVICE constexpr int phases() const {
    return kMany ? 3 * static_cast<int>((rank + kWidth - 1) / kWidth) : 3;
  }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    const LowRankTile tile = tiles[at.block];
    const int pass = kMany ? phase / 3 : 0;
    const Lanes lanes(tile.kind, at.thread);
    const typename Shared::Sets sets{lanes.groups, true};
    switch (kMany ? phase % 3 : phase) {
      case 0:
        return Multiply(tile, lanes, pass, at.thread, shared);
      case 1:
        return shared->SumRuns(sets, at.thread);
      default:
        return Keep(tile, lanes, sets, pass, at.thread, *shared);
    }
  }

 private:
  COXSWAIN_HOST_DEVICE void Multiply(const LowRankTile& tile,
                                     const Lanes& lanes, int pass, int thread,
                                     Shared* shared) const {
    T sums[kWidth][kVector<T>];
    COXSWAIN_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      COXSWAIN_UNROLL
      for (int e = 0; e < kVector<T>; ++e) sums[k][e] = 0;
    }
    const DeviceLowRankMatrix<T> matrix = matrices[tile.item];
    if (matrix.x != nullptr) {
      Walk<OwnElement<T>>(matrix, matrix.x, tile, lanes, pass, sums);
    } else {
      Walk<Element>(matrix, static_cast<const Stored*>(matrix.gradient), tile,
                    lanes, pass, sums);
    }
    COXSWAIN_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      COXSWAIN_UNROLL
      for (int e = 0; e < kVector<T>; ++e) {
        shared->Put(k * kVector<T> + e, thread, sums[k][e]);
      }
    }
  }

  template <class Source>
  COXSWAIN_HOST_DEVICE void Walk(const DeviceLowRankMatrix<T>& matrix,
                                 const typename Source::Stored* from,
                                 const LowRankTile& tile, const Lanes& lanes,
                                 int pass, T (*sums)[kVector<T>]) const {
    const ColumnsOf<T> columns(matrix.m, lanes);
    const bool aligned = columns.whole && VectorOf<T, Source>::FitsAt(from);
    const int64_t j = tile.column + columns.first;
    if (j >= matrix.m) return;
    const int64_t last = tile.row + kRowsOfThread * lanes.groups;
    const int64_t end = last < matrix.n ? last : matrix.n;
    for (int64_t i = tile.row + lanes.group; i < end;
         i += kTogether * lanes.groups) {
      T x[kTogether][kVector<T>];
      COXSWAIN_UNROLL
      for (int row = 0; row < kTogether; ++row) {
        // Those below the tile are read as the first one, times zero.
        LoadGroup<T, Source>(from + Row(i, row, lanes, end) * matrix.m, j,
                             columns.step, matrix.m, aligned, x[row]);
      }
      COXSWAIN_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        const int64_t column = pass * kWidth + k;
        if (column >= matrix.r) break;
        T weights[kTogether];
        COXSWAIN_UNROLL
        for (int row = 0; row < kTogether; ++row) {
          const bool inside = i + row * lanes.groups < end;
          weights[row] =
              inside ? matrix.p[column * matrix.n + i + row * lanes.groups]
                     : T{0};
        }
        COXSWAIN_UNROLL
        for (int e = 0; e < kVector<T>; ++e) {
          sums[k][e] += SumOfFew<kTogether>(weights, &x[0][e], kVector<T>);
        }
      }
    }
  }

  static COXSWAIN_HOST_DEVICE int64_t Row(int64_t i, int row,
                                          const Lanes& lanes, int64_t end) {
    const int64_t at = i + row * lanes.groups;
    return at < end ? at : i;
  }

  // Partial sums of a matrix: strip by strip of its rows, an m x r factor each.
  COXSWAIN_HOST_DEVICE void Keep(const LowRankTile& tile, const Lanes& lanes,
                                 const typename Shared::Sets& sets, int pass,
                                 int thread, const Shared& shared) const {
    const DeviceLowRankMatrix<T>& matrix = matrices[tile.item];
    const int width = kVector<T> * lanes.lanes;  // columns of the tile
    for (int item = thread; item < kWidth * width; item += kThreads) {
      // Neighbouring threads have neighbouring columns.
      const int64_t k = pass * kWidth + item / width;
      const int place = item % width;
      const int64_t column = tile.column + place;
      if (column >= matrix.m || k >= matrix.r) continue;
      const bool whole = matrix.m % kVector<T> == 0;
      const int lane = whole ? place / kVector<T> : place % lanes.lanes;
      const int e = whole ? place % kVector<T> : place / lanes.lanes;
      partials[tile.partial + k * matrix.m + column] =
          shared.SumOf(sets, item / width * kVector<T> + e, lane);
    }
  }
};

// Gradients = P transpose(Q), and what raw tensors do after the exchange.
template <typename T, class Element, int kWidth, bool kMany>
struct FinishProgram {
  static constexpr int kThreads = kLowRankThreads;
  static constexpr int kProduct = kWidth < 4 ? kWidth : 4;
  using Stored = typename Element::Stored;
  struct Shared {};
  struct Thread {};

  const LowRankTile* tiles;
  const DeviceLowRankMatrix<T>* matrices;
  const DeviceRawTensor<T>* raws;
  const uint32_t* poisoned;
  T divisor;
  bool fill_with_nan;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }

  COXSWAIN_HOST_DEVICE void Run(int, const BlockPlace& at, Thread*,
                                Shared*) const {
    const bool bad = *poisoned != 0;
    if (bad && !fill_with_nan) return;
    const LowRankTile tile = tiles[at.block];
    if (tile.kind == kRawKind) return FinishRaw(tile, bad, at.thread);
    const Lanes lanes(tile.kind, at.thread);
    const DeviceLowRankMatrix<T> matrix = matrices[tile.item];
    const ColumnsOf<T> columns(matrix.m, lanes);
    const int64_t j = tile.column + columns.first;
    if (j >= matrix.m) return;
    if constexpr (kMany) {
      Walk(matrix, tile, lanes, columns, j, bad, nullptr);
    } else {
      const bool aligned =
          columns.whole && VectorOf<T, OwnElement<T>>::FitsAt(matrix.q);
      T q[kWidth][kVector<T>];
      COXSWAIN_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        // Zero beyond r, as the weights are.
        LoadGroup<T, OwnElement<T>>(
            matrix.q + (k < matrix.r ? k : 0) * matrix.m, j, columns.step,
            k < matrix.r ? matrix.m : 0, aligned && k < matrix.r, q[k]);
      }
      Walk(matrix, tile, lanes, columns, j, bad, q);
    }
  }

 private:
  COXSWAIN_HOST_DEVICE void Walk(const DeviceLowRankMatrix<T>& matrix,
                                 const LowRankTile& tile, const Lanes& lanes,
                                 const ColumnsOf<T>& columns, int64_t j,
                                 bool bad, const T (*q)[kVector<T>]) const {
    const bool aligned =
        columns.whole && VectorOf<T, Element>::FitsAt(matrix.gradient);
    const int64_t last = tile.row + kRowsOfThread * lanes.groups;
    const int64_t end = last < matrix.n ? last : matrix.n;
    COXSWAIN_UNROLL_4
    for (int64_t i = tile.row + lanes.group; i < end; i += lanes.groups) {
      T out[kVector<T>];
      if constexpr (kMany) {
        MultiplyMany(matrix, columns, i, j, out);
      } else {
        Multiply(matrix, i, q, out);
      }
      COXSWAIN_UNROLL
      for (int e = 0; e < kVector<T>; ++e) {
        out[e] = bad ? kNotANumber<T> : out[e];
      }
      StoreGroup<T, Element>(
          out, j, columns.step, matrix.m, aligned,
          static_cast<Stored*>(matrix.gradient) + i * matrix.m);
    }
  }

  COXSWAIN_HOST_DEVICE void Multiply(const DeviceLowRankMatrix<T>& matrix,
                                     int64_t i, const T (*q)[kVector<T>],
                                     T* out) const {
    T weights[kWidth];
    COXSWAIN_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      weights[k] = k < matrix.r ? matrix.p[k * matrix.n + i] : T{0};
    }
    COXSWAIN_UNROLL
    for (int e = 0; e < kVector<T>; ++e) {
      out[e] = SumOfFew<kProduct>(weights, &q[0][e], kVector<T>);
    }
    COXSWAIN_UNROLL
    for (int k = kProduct; k < kWidth; k += kProduct) {
      COXSWAIN_UNROLL
      for (int e = 0; e < kVector<T>; ++e) {
        out[e] += SumOfFew<kProduct>(weights + k, &q[k][e], kVector<T>);
      }
    }
  }

  COXSWAIN_HOST_DEVICE void MultiplyMany(const DeviceLowRankMatrix<T>& matrix,
                                         const ColumnsOf<T>& columns, int64_t i,
                                         int64_t j, T* out) const {
    for (int64_t k = 0; k < matrix.r; k += kProduct) {
      T weights[kProduct];
      T q[kProduct][kVector<T>];
      COXSWAIN_UNROLL
      for (int c = 0; c < kProduct; ++c) {
        const bool inside = k + c < matrix.r;
        weights[c] = inside ? matrix.p[(k + c) * matrix.n + i] : T{0};
        LoadGroup<T, OwnElement<T>>(matrix.q + (inside ? k + c : k) * matrix.m,
                                    j, columns.step, inside ? matrix.m : 0,
                                    false, q[c]);
      }
      COXSWAIN_UNROLL
      for (int e = 0; e < kVector<T>; ++e) {
        const T sum = SumOfFew<kProduct>(weights, &q[0][e], kVector<T>);
        out[e] = k == 0 ? sum : out[e] + sum;
      }
    }
  }

  COXSWAIN_HOST_DEVICE void FinishRaw(const LowRankTile& tile, bool bad,
                                      int thread) const {
    const DeviceRawTensor<T> raw = raws[tile.item];
    const int64_t last = tile.row + kRawTile;
    const int64_t end = last < raw.count ? last : raw.count;
    for (int64_t i = tile.row + thread; i < end; i += kThreads) {
      const T mean = raw.sent[i] / divisor;
      static_cast<Stored*>(raw.gradient)[i] =
          Element::Narrow(bad ? kNotANumber<T> : mean);
      if (!bad && raw.x != nullptr) raw.x[i] -= mean;
    }
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_PROJECT_H_
