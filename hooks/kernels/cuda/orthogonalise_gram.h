#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_GRAM_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_GRAM_H_

#include <cstdint>

#include "base/host_device.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/low_rank_block_sums.h"
#include "hooks/kernels/cuda/orthogonalise.h"
#include "hooks/kernels/cuda/orthogonalise_access.h"

// The Gram matrices of strips of rows, in double; and matrices that are drawn.
// Partial sums of a matrix: strip by strip, the upper triangle by columns.

namespace coxswain {

// What both programs are given.
struct GramInput {
  const TallStrip* strips;
  const DeviceTallMatrix<float>* matrices;
  double* partials;
  TallDraws draws;
  const uint32_t* poisoned;

  // Each thread fills in its rows of a matrix that is drawn.
  COXSWAIN_HOST_DEVICE void Draw(const DeviceTallMatrix<float>& matrix,
                                 const TallStrip& strip, int thread) const {
    if (matrix.from != nullptr) return;
    for (int64_t i = thread; i < strip.rows; i += kLowRankThreads) {
      for (int64_t k = 0; k < matrix.r; ++k) {
        matrix.to[k * matrix.n + strip.row + i] =
            draws.At(matrix, strip.row + i, k);
      }
    }
  }
  static COXSWAIN_HOST_DEVICE const float* Source(
      const DeviceTallMatrix<float>& matrix) {
    return matrix.from != nullptr ? matrix.from : matrix.to;
  }
  COXSWAIN_HOST_DEVICE double* Sums(const DeviceTallMatrix<float>& matrix,
                                    const TallStrip& strip) const {
    return partials + strip.partial +
           int64_t{strip.strip} * PairsOf(static_cast<int>(matrix.r));
  }
};

// Up to kWidth <= 4 columns: each thread multiplies all columns of its rows.
template <int kWidth>
struct FewGramProgram {
  static constexpr int kThreads = kLowRankThreads;
  static constexpr int kPairs = PairsOf(kWidth);
  using Shared = BlockSums<double, kPairs>;
  struct Thread {};

  GramInput input;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 3; }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    const TallStrip strip = input.strips[at.block];
    const DeviceTallMatrix<float> matrix = input.matrices[strip.matrix];
    if (!HasGram(matrix) || IsPoisoned(input.poisoned)) return;
    const typename Shared::Sets sets{kThreads, false};
    if (phase == 0) {
      input.Draw(matrix, strip, at.thread);
      Multiply(matrix, strip, at.thread, shared);
    } else if (phase == 1) {
      shared->SumRuns(sets, at.thread);
    } else if (at.thread < PairsOf(static_cast<int>(matrix.r))) {
      input.Sums(matrix, strip)[at.thread] = shared->SumOf(sets, at.thread, 0);
    }
  }

 private:
  COXSWAIN_HOST_DEVICE void Multiply(const DeviceTallMatrix<float>& matrix,
                                     const TallStrip& strip, int thread,
                                     Shared* shared) const {
    double sums[kPairs];
    COXSWAIN_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) sums[pair] = 0;
    const float* const from = GramInput::Source(matrix) + strip.row;
    COXSWAIN_UNROLL_4
    for (int64_t i = thread; i < strip.rows; i += kThreads) {
      double values[kWidth];
      COXSWAIN_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        values[k] = k < matrix.r ? double{from[k * matrix.n + i]} : 0.0;
      }
      COXSWAIN_UNROLL
      for (int k = 0; k < kWidth; ++k) {
        COXSWAIN_UNROLL
        for (int c = 0; c <= k; ++c) {
          sums[PairsOf(k) + c] += values[c] * values[k];
        }
      }
    }
    COXSWAIN_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      shared->Put(pair, thread, sums[pair]);
    }
  }
};

// Up to kWidth columns, whose products are shared out among the threads; rows
// stand in shared memory meanwhile.
template <int kWidth>
struct ManyGramProgram {
  static constexpr int kThreads = kLowRankThreads;
  static constexpr int kPairs = PairsOf(kWidth);
  // Threads that have the same product, of different rows.
  static constexpr int kLanes = kPairs <= 64 ? 4 : 1;
  static constexpr int kPairsOfThread = (kPairs * kLanes + 255) / kThreads;
  struct Shared {
    float rows[kWidth][kRowsAtOnce + 1];
    double lanes[kLanes > 1 ? kThreads : 1];
  };
  struct Thread {
    double sums[kPairsOfThread];
  };

  GramInput input;
  int64_t rows;  // of the longest strip

  COXSWAIN_HOST_DEVICE constexpr int phases() const {
    return 2 * static_cast<int>((rows + kRowsAtOnce - 1) / kRowsAtOnce) + 1;
  }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread* thread,
                                Shared* shared) const {
    const TallStrip strip = input.strips[at.block];
    const DeviceTallMatrix<float> matrix = input.matrices[strip.matrix];
    if (!HasGram(matrix) || IsPoisoned(input.poisoned)) return;
    if (phase == 0) {
      input.Draw(matrix, strip, at.thread);
      COXSWAIN_UNROLL
      for (int i = 0; i < kPairsOfThread; ++i) thread->sums[i] = 0;
    }
    const int64_t begin = phase / 2 * kRowsAtOnce;
    const int64_t left = strip.rows - begin;
    const auto count =
        static_cast<int>(left < kRowsAtOnce ? left : kRowsAtOnce);
    if (phase == phases() - 1) {
      return Keep(matrix, strip, at.thread, *thread, *shared);
    }
    if (phase % 2 == 0) {
      // kRowsAtOnce threads: a row each, which the same one has drawn.
      if (at.thread >= count) return;
      const float* const from =
          GramInput::Source(matrix) + strip.row + begin + at.thread;
      for (int64_t k = 0; k < matrix.r; ++k) {
        shared->rows[k][at.thread] = from[k * matrix.n];
      }
      return;
    }
    Multiply(matrix, count, at.thread, thread, shared);
  }

 private:
  // Of pair `number`: the column it ends in. Loops up to kWidth times.
  static COXSWAIN_HOST_DEVICE int ColumnOf(int number) {
    int k = 0;
    while (PairsOf(k + 1) <= number) ++k;
    return k;
  }

  COXSWAIN_HOST_DEVICE void Multiply(const DeviceTallMatrix<float>& matrix,
                                     int count, int at, Thread* thread,
                                     Shared* shared) const {
    const int pairs = PairsOf(static_cast<int>(matrix.r));
    COXSWAIN_UNROLL
    for (int i = 0; i < kPairsOfThread; ++i) {
      const int pair = at % (kThreads / kLanes) + i * kThreads;
      const int lane = at / (kThreads / kLanes);
      if (pair >= pairs) break;
      const int column = ColumnOf(pair);
      const float* const a = shared->rows[pair - PairsOf(column)];
      const float* const b = shared->rows[column];
      double sum = thread->sums[i];
      for (int row = lane; row < count; row += kLanes) {
        sum += double{a[row]} * double{b[row]};
      }
      thread->sums[i] = sum;
    }
    if constexpr (kLanes > 1) shared->lanes[at] = thread->sums[0];
  }

  COXSWAIN_HOST_DEVICE void Keep(const DeviceTallMatrix<float>& matrix,
                                 const TallStrip& strip, int at,
                                 const Thread& thread,
                                 const Shared& shared) const {
    const int pairs = PairsOf(static_cast<int>(matrix.r));
    double* const to = input.Sums(matrix, strip);
    if constexpr (kLanes > 1) {
      if (at >= pairs) return;
      double sum = shared.lanes[at];
      for (int lane = 1; lane < kLanes; ++lane) {
        sum += shared.lanes[lane * (kThreads / kLanes) + at];
      }
      to[at] = sum;
    } else {
      COXSWAIN_UNROLL
      for (int i = 0; i < kPairsOfThread; ++i) {
        const int pair = at + i * kThreads;
        if (pair < pairs) to[pair] = thread.sums[i];
      }
    }
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_GRAM_H_
