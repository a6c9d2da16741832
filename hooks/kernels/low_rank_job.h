#ifndef COXSWAIN_HOOKS_KERNELS_LOW_RANK_JOB_H_
#define COXSWAIN_HOOKS_KERNELS_LOW_RANK_JOB_H_

#include <cstdint>

#include "hooks/kernels/low_rank.h"

// Between low_rank.cc, which cuts work for threads, and the passes over a
// matrix, which are compiled for each instruction set.

namespace coxswain {

template <typename T>
struct LowRankJob : LowRankPass<T> {
  bool stream = false;  // `out` is written past the caches
};

// P = X Q for the rows [begin, end), where the sums run along memory: partial
// sums and their order as in vectors-inl.h. With r = 0 only `out` is written.
void RunRows(const LowRankJob<float>& job, int64_t begin, int64_t end);
void RunRows(const LowRankJob<double>& job, int64_t begin, int64_t end);

// Q = transpose(X) P for the columns [begin, end). The rows are added four at
// a time, (0 + 1) + (2 + 3), to a sum of at most 128 rows, and those sums to
// the result, all from the top of the matrix.
void RunColumns(const LowRankJob<float>& job, int64_t begin, int64_t end);
void RunColumns(const LowRankJob<double>& job, int64_t begin, int64_t end);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_LOW_RANK_JOB_H_
