#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_SOLVE_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_SOLVE_H_

#include <math.h>

#include <cstdint>

#include "base/host_device.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/low_rank_block_sums.h"
#include "hooks/kernels/cuda/orthogonalise.h"
#include "hooks/kernels/cuda/orthogonalise_access.h"
#include "hooks/kernels/cuda/orthogonalise_schmidt.h"

// From Gram matrices to orthonormal columns. G = R'R is factorised as an
// elimination of the rows of (G | I), which leaves the inverse of R' beside it;
// the columns times U, the inverse of R, are orthonormal.

namespace coxswain {

// Up to this condition of the columns, each scaled to length 1, one round in
// double leaves less than float's rounding.
constexpr double kLargestSquaredCondition = 1e6;
// Squares of norms between which sums of squares are exact enough.
constexpr double kSmallestSquare = 1e-250;
constexpr double kLargestSquare = 1e250;

// Matrices of up to kWidth columns, and, by Gram-Schmidt, of more.
template <typename T, int kWidth>
struct SolveProgram {
  static constexpr int kThreads = kLowRankThreads;
  // From here on Gram-Schmidt: a barrier for each step of the elimination, one
  // before and two after.
  static constexpr int kSchmidt = kWidth + 3;
  struct Shared {
    double gram[kWidth][kWidth];     // its upper triangle, being eliminated
    double inverse[kWidth][kWidth];  // of what was done to the rows
    double upper[kWidth][kWidth];    // U
    double squares[kWidth];          // of the columns' norms
    double conditions[kWidth];       // what each row adds to the condition
    bool cholesky;                   // is to be tried
    bool safe;                       // and is good enough, by its pivots
    bool falls_back;  // to Gram-Schmidt; decided before those phases
    SchmidtShared schmidt;
  };
  struct Thread {};

  const TallStrip* strips;
  const DeviceTallMatrix<T>* matrices;
  const double* partials;
  TallDraws draws;
  const uint32_t* poisoned;
  int64_t rank;
  int rounds;  // of Gram-Schmidt

  COXSWAIN_HOST_DEVICE constexpr int phases() const {
    return kSchmidt + rounds * Columns() * Schmidt<T>::kStages +
           (rank > kMostSchmidtColumns ? 1 : 0);
  }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    if (phase == 0) return Begin(at, shared);
    const bool schmidt = phase >= kSchmidt;
    if (schmidt ? !shared->falls_back : !shared->cholesky) return;
    const TallStrip strip = strips[at.block];
    const DeviceTallMatrix<T> matrix = matrices[strip.matrix];
    if (schmidt) return Orthogonalise(matrix, phase, at.thread, shared);
    if (phase <= kWidth) {
      Eliminate(static_cast<int>(matrix.r), phase - 1, at.thread, shared);
    } else if (phase == kWidth + 1) {
      Invert(matrix, at.thread, shared);
    } else {
      Apply(matrix, strip, at.thread, shared);
    }
  }

 private:
  COXSWAIN_HOST_DEVICE constexpr int Columns() const {
    return static_cast<int>(rank < kMostSchmidtColumns ? rank
                                                       : kMostSchmidtColumns);
  }

  COXSWAIN_HOST_DEVICE void Begin(const BlockPlace& at, Shared* shared) const {
    const TallStrip strip = strips[at.block];
    const DeviceTallMatrix<T> matrix = matrices[strip.matrix];
    const bool gram = HasGram(matrix);
    const bool poison = IsPoisoned(poisoned);
    if (at.thread == 0) {
      shared->safe = true;
      shared->cholesky = gram && !poison;
      // The first strip's block has the whole matrix then.
      shared->falls_back = !gram && !poison && strip.strip == 0;
    }
    if (!gram || poison) return;
    const auto r = static_cast<int>(matrix.r);
    const double* const from = partials + strip.partial;
    const int pairs = PairsOf(r);
    for (int i = at.thread; i < r * r; i += kThreads) {
      const int row = i / r, column = i % r;
      shared->inverse[row][column] = row == column ? 1 : 0;
      if (row > column) continue;
      const int pair = PairsOf(column) + row;
      double sum = 0;
      COXSWAIN_UNROLL_4
      for (int part = 0; part < strip.strips; ++part) {
        sum += from[part * pairs + pair];
      }
      shared->gram[row][column] = sum;
      if (row == column) shared->squares[row] = sum;
    }
  }

  // Takes row k from those below it. Written so that a NaN is not safe.
  static COXSWAIN_HOST_DEVICE void Eliminate(int r, int k, int thread,
                                             Shared* shared) {
    if (k >= r) return;
    const double pivot = shared->gram[k][k];
    if (thread == 0) {
      const double square = shared->squares[k];
      const bool safe = square >= kSmallestSquare && square <= kLargestSquare &&
                        pivot > square / kLargestSquaredCondition;
      if (!safe) shared->safe = false;
    }
    if constexpr (kWidth > 1) TakeFromRows(r, k, pivot, thread, shared);
  }

  static COXSWAIN_HOST_DEVICE void TakeFromRows(int r, int k, double pivot,
                                                int thread, Shared* shared) {
    for (int i = thread; i < (r - 1 - k) * r; i += kThreads) {
      const int row = k + 1 + i / r, column = i % r;
      const double factor = shared->gram[k][row] / pivot;
      if (column >= row) {
        shared->gram[row][column] -= factor * shared->gram[k][column];
      }
      if (column <= k) {
        shared->inverse[row][column] -= factor * shared->inverse[k][column];
      }
    }
  }

  // Rows of U, and their part of the condition.
  static COXSWAIN_HOST_DEVICE void Invert(const DeviceTallMatrix<T>& matrix,
                                          int thread, Shared* shared) {
    const auto r = static_cast<int>(matrix.r);
    for (int row = thread; row < r; row += kThreads) {
      double sum = 0;
      for (int column = row; column < r; ++column) {
        double norm = sqrt(shared->gram[column][column]);
        if (r == 1 && matrix.cholesky == 0) norm += matrix.epsilon;
        const double value = shared->inverse[column][row] / norm;
        shared->upper[row][column] = value;
        sum += value * value;
      }
      shared->conditions[row] = sum * shared->squares[row];
    }
  }

  COXSWAIN_HOST_DEVICE void Apply(const DeviceTallMatrix<T>& matrix,
                                  const TallStrip& strip, int thread,
                                  Shared* shared) const {
    const auto r = static_cast<int>(matrix.r);
    double condition = 0;
    for (int row = 0; row < r; ++row) condition += shared->conditions[row];
    condition *= r;
    const bool safe = shared->safe && condition <= kLargestSquaredCondition;
    if (!safe) {
      if (thread == 0) shared->falls_back = strip.strip == 0;
      return;
    }
    const T* const source = (matrix.from != nullptr ? matrix.from : matrix.to);
    for (int64_t i = strip.row + thread; i < strip.row + strip.rows;
         i += kThreads) {
      if constexpr (kWidth <= 8) {
        MultiplyRow(matrix, source + i, matrix.to + i, *shared);
      } else {
        MultiplyLongRow(matrix, source + i, matrix.to + i, *shared);
      }
    }
  }

  static COXSWAIN_HOST_DEVICE void MultiplyRow(
      const DeviceTallMatrix<T>& matrix, const T* from, T* to,
      const Shared& shared) {
    double row[kWidth];
    COXSWAIN_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      row[k] = k < matrix.r ? static_cast<double>(from[k * matrix.n]) : 0.0;
    }
    COXSWAIN_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      if (k >= matrix.r) break;
      double sum = row[0] * shared.upper[0][k];
      COXSWAIN_UNROLL
      for (int j = 1; j <= k; ++j) sum += row[j] * shared.upper[j][k];
      to[k * matrix.n] = static_cast<T>(sum);
    }
  }
  // From the right, as a column needs those before it as they were.
  static COXSWAIN_HOST_DEVICE void MultiplyLongRow(
      const DeviceTallMatrix<T>& matrix, const T* from, T* to,
      const Shared& shared) {
    for (int k = static_cast<int>(matrix.r) - 1; k >= 0; --k) {
      double sum = 0;
      COXSWAIN_UNROLL_4
      for (int j = 0; j <= k; ++j) {
        sum += static_cast<double>(from[j * matrix.n]) * shared.upper[j][k];
      }
      to[k * matrix.n] = static_cast<T>(sum);
    }
  }

  COXSWAIN_HOST_DEVICE void Orthogonalise(const DeviceTallMatrix<T>& matrix,
                                          int phase, int thread,
                                          Shared* shared) const {
    // What is drawn and has a Gram matrix was drawn for that.
    const T* const source =
        matrix.from == nullptr && HasGram(matrix) ? matrix.to : matrix.from;
    if (matrix.r > kMostSchmidtColumns) {
      if (phase < phases() - 1 || thread != 0) return;
      return SchmidtAlone<T>(matrix, draws).Run(source);
    }
    const int step = phase - kSchmidt;
    const int column = step / Schmidt<T>::kStages;
    if (column >= rounds * Columns()) return;
    Schmidt<T>(matrix, draws, source, thread, &shared->schmidt)
        .Run(column / Columns(), column % Columns(),
             step % Schmidt<T>::kStages);
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_SOLVE_H_
