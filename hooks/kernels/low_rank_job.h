#ifndef COXSWAIN_HOOKS_KERNELS_LOW_RANK_JOB_H_
#define COXSWAIN_HOOKS_KERNELS_LOW_RANK_JOB_H_

#include <cstdint>

#include "client/comm/tensor.h"
#include "hooks/kernels/low_rank.h"

// Between low_rank.cc, which cuts work for threads, and the passes over a
// matrix, which are compiled for each instruction set.

namespace coxswain {

// Of X = gradient + previous - product: goes to `out`, and is multiplied with
// `factor`. Without a gradient, X = product.
template <typename T>
struct LowRankJob {
  const void* gradient = nullptr;  // or null
  DType type = DType::kFloat32;    // of the gradient
  const T* previous = nullptr;     // or null
  LowRankProduct<T> product;
  void* out = nullptr;  // or null
  DType out_type = DType::kFloat32;
  bool stream = false;        // `out` is written past the caches
  const T* factor = nullptr;  // Q for the rows, P for the columns
  int64_t r = 0;              // columns of the factor
  T* result = nullptr;        // P for the rows, Q for the columns
  int64_t n = 0;
  int64_t m = 0;
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
