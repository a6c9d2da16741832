#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_TAKE_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_TAKE_H_

#include <cstdint>

#include "base/host_device.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/low_rank.h"
#include "hooks/kernels/cuda/low_rank_access.h"
#include "hooks/kernels/cuda/low_rank_block_sums.h"

// X = gradient + previous - previous_p transpose(previous_q), and the sums of
// X Q over the columns of a tile. A thread has kVector rows, and of each
// kVector columns at a time, up to kColumnsOfThread.

namespace coxswain {

// kWidth: columns of Q at a time, those that there are. kMany: there are more,
// and X is read again for each kWidth of them.
template <typename T, class Element, int kWidth, bool kMany>
struct TakeProgram {
  static constexpr int kThreads = kLowRankThreads;
  static constexpr int kRows = kVector<T>;
  static constexpr int kProduct = kWidth < 4 ? kWidth : 4;
  using Stored = typename Element::Stored;
  using Shared = BlockSums<T, kRows * kWidth>;
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
    const typename Shared::Sets sets{lanes.lanes, false};
    switch (kMany ? phase % 3 : phase) {
      case 0:
        return Multiply(tile, lanes, pass, at.thread, shared);
      case 1:
        return shared->SumRuns(sets, at.thread);
      default:
        return Keep(tile, sets, pass, at.thread, *shared);
    }
  }

 private:
  // What does not change from column to column.
  struct Walk {
    DeviceLowRankMatrix<T> matrix;
    const Stored* gradient;
    bool own_aligned, gradient_aligned, q_aligned, previous_q_aligned;
    int64_t row;
    T weights[kRows][kWidth];  // of previous_p
  };

  COXSWAIN_HOST_DEVICE void Multiply(const LowRankTile& tile,
                                     const Lanes& lanes, int pass, int thread,
                                     Shared* shared) const {
    T sums[kRows][kWidth];
    COXSWAIN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      COXSWAIN_UNROLL
      for (int k = 0; k < kWidth; ++k) sums[i][k] = 0;
    }
    Walk walk;
    walk.matrix = matrices[tile.item];
    walk.row = tile.row + int64_t{kRows} * lanes.group;
    if (walk.row < walk.matrix.n) {
      const ColumnsOf<T> columns(walk.matrix.m, lanes);
      Start(columns, &walk);
      const int64_t last = tile.column + kColumnsOfThread * lanes.lanes;
      const int64_t end = last < walk.matrix.m ? last : walk.matrix.m;
      for (int64_t j = tile.column + columns.first; j < end;
           j += kVector<T> * lanes.lanes) {
        Step(walk, columns, j, end, pass, sums);
      }
    }
    COXSWAIN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      COXSWAIN_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        shared->Put(i * kWidth + k, thread, sums[i][k]);
      }
    }
  }

  COXSWAIN_HOST_DEVICE void Start(const ColumnsOf<T>& columns,
                                  Walk* walk) const {
    using Own = VectorOf<T, OwnElement<T>>;
    const DeviceLowRankMatrix<T>& matrix = walk->matrix;
    walk->gradient = static_cast<const Stored*>(matrix.gradient);
    walk->gradient_aligned =
        columns.whole && VectorOf<T, Element>::FitsAt(matrix.gradient);
    walk->own_aligned =
        columns.whole && Own::FitsAt(matrix.previous) && Own::FitsAt(matrix.x);
    walk->q_aligned = columns.whole && Own::FitsAt(matrix.first_q);
    walk->previous_q_aligned = columns.whole && Own::FitsAt(matrix.previous_q);
    if constexpr (!kMany) StartWeights(walk);
  }

  static COXSWAIN_HOST_DEVICE void StartWeights(Walk* walk) {
    const DeviceLowRankMatrix<T>& matrix = walk->matrix;
    if (matrix.previous_p == nullptr) return;
    COXSWAIN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      COXSWAIN_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        walk->weights[i][k] =
            k < matrix.r ? matrix.previous_p[k * matrix.n + Row(*walk, i)]
                         : T{0};
      }
    }
  }

  // Rows below the matrix are the last one again, of which nothing is kept.
  static COXSWAIN_HOST_DEVICE int64_t Row(const Walk& walk, int i) {
    const int64_t row = walk.row + i;
    return row < walk.matrix.n ? row : walk.matrix.n - 1;
  }

  COXSWAIN_HOST_DEVICE void Step(const Walk& walk, const ColumnsOf<T>& columns,
                                 int64_t j, int64_t end, int pass,
                                 T (*sums)[kWidth]) const {
    const DeviceLowRankMatrix<T>& matrix = walk.matrix;
    T x[kRows][kVector<T>];
    if (kMany && pass > 0 && matrix.x != nullptr) {
      LoadRows(matrix.x, walk, columns, j, end, x);
    } else {
      Accumulate(walk, columns, j, end, x);
      if (pass == 0 && matrix.x != nullptr) {
        COXSWAIN_UNROLL
        for (int i = 0; i < kRows; ++i) {
          if (walk.row + i >= matrix.n) break;
          StoreGroup<T, OwnElement<T>>(x[i], j, columns.step, end,
                                       walk.own_aligned,
                                       matrix.x + (walk.row + i) * matrix.m);
        }
      }
    }
    COXSWAIN_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      const int64_t column = pass * kWidth + k;
      if (column >= matrix.r) break;
      T q[kVector<T>];
      LoadGroup<T, OwnElement<T>>(matrix.first_q + column * matrix.m, j,
                                  columns.step, end, walk.q_aligned, q);
      COXSWAIN_UNROLL
      for (int i = 0; i < kRows; ++i) {
        sums[i][k] += SumOfFew<kVector<T>>(x[i], q, 1);
      }
    }
  }

  COXSWAIN_HOST_DEVICE void LoadRows(const T* from, const Walk& walk,
                                     const ColumnsOf<T>& columns, int64_t j,
                                     int64_t end, T (*to)[kVector<T>]) const {
    COXSWAIN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LoadGroup<T, OwnElement<T>>(from + Row(walk, i) * walk.matrix.m, j,
                                  columns.step, end, walk.own_aligned, to[i]);
    }
  }

  COXSWAIN_HOST_DEVICE void Accumulate(const Walk& walk,
                                       const ColumnsOf<T>& columns, int64_t j,
                                       int64_t end, T (*x)[kVector<T>]) const {
    const DeviceLowRankMatrix<T>& matrix = walk.matrix;
    COXSWAIN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      LoadGroup<T, Element>(walk.gradient + Row(walk, i) * matrix.m, j,
                            columns.step, end, walk.gradient_aligned, x[i]);
    }
    if (matrix.previous == nullptr) return;
    T previous[kRows][kVector<T>];
    LoadRows(matrix.previous, walk, columns, j, end, previous);
    COXSWAIN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      COXSWAIN_UNROLL
      for (int e = 0; e < kVector<T>; ++e) x[i][e] += previous[i][e];
    }
    if (matrix.previous_p == nullptr) return;
    if constexpr (kMany) {
      for (int64_t k = 0; k < matrix.r; k += kProduct) {
        T weights[kRows][kProduct];
        COXSWAIN_UNROLL
        for (int i = 0; i < kRows; ++i) {
          COXSWAIN_UNROLL
          for (int c = 0; c < kProduct; ++c) {
            weights[i][c] =
                k + c < matrix.r
                    ? matrix.previous_p[(k + c) * matrix.n + Row(walk, i)]
                    : T{0};
          }
        }
        Subtract<kProduct>(walk, columns, j, end, k, weights, 0, x);
      }
    } else {
      COXSWAIN_UNROLL
      for (int k = 0; k < kWidth; k += kProduct) {
        if (k >= matrix.r) break;
        Subtract<kWidth>(walk, columns, j, end, k, walk.weights, k, x);
      }
    }
  }

  // x -= the product of columns k to k + kProduct, whose weights begin at
  // `offset`.
  template <int kColumns>
  COXSWAIN_HOST_DEVICE void Subtract(const Walk& walk,
                                     const ColumnsOf<T>& columns, int64_t j,
                                     int64_t end, int64_t k,
                                     const T (*weights)[kColumns], int offset,
                                     T (*x)[kVector<T>]) const {
    const DeviceLowRankMatrix<T>& matrix = walk.matrix;
    T q[kProduct][kVector<T>];
    COXSWAIN_UNROLL
    for (int c = 0; c < kProduct; ++c) {
      if (k + c < matrix.r) {
        LoadGroup<T, OwnElement<T>>(matrix.previous_q + (k + c) * matrix.m, j,
                                    columns.step, end, walk.previous_q_aligned,
                                    q[c]);
      } else {
        COXSWAIN_UNROLL
        for (int e = 0; e < kVector<T>; ++e) q[c][e] = 0;
      }
    }
    COXSWAIN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      COXSWAIN_UNROLL
      for (int e = 0; e < kVector<T>; ++e) {
        x[i][e] -=
            SumOfFew<kProduct>(weights[i] + offset, &q[0][e], kVector<T>);
      }
    }
  }

  // Partial sums of a matrix: chunk by chunk of its columns, an n x r factor
  // each.
  COXSWAIN_HOST_DEVICE void Keep(const LowRankTile& tile,
                                 const typename Shared::Sets& sets, int pass,
                                 int thread, const Shared& shared) const {
    const DeviceLowRankMatrix<T>& matrix = matrices[tile.item];
    for (int item = thread; item < kRows * kWidth * sets.sets();
         item += kThreads) {
      const int group = item % sets.sets();
      const int value = item / sets.sets();
      const int64_t row = tile.row + kRows * group + value / kWidth;
      const int64_t k = pass * kWidth + value % kWidth;
      if (row >= matrix.n || k >= matrix.r) continue;
      partials[tile.partial + k * matrix.n + row] =
          shared.SumOf(sets, value, group);
    }
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_TAKE_H_
