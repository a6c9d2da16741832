#include <cstdint>
#include <vector>

#include "hooks/kernels/low_rank_job.h"

// Highway's order: this file once for each target, then the vectors.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/kernels/low_rank_rows.cc"
#include "hwy/foreach_target.h"  // NOLINT
#include "hooks/kernels/combine-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {
namespace {

// Columns of X at a time: four rows and eight columns of factors fit into the
// first cache.
constexpr int64_t kRowsWidth = 512;

// Rows whose sums fit into the registers, of which only AVX-512 has 32.
constexpr int64_t kTogether = hn::MaxLanes(Tag<float>()) == 16 ? 4 : 2;

// Adds to the partial sums of kTogether rows times kCount columns, lanes
// [lane, lane + width of a vector) of each. Fetches `next` on the way.
template <int kCount, class D, typename T = hn::TFromD<D>>
HWY_INLINE void DotLanes(D d, const T* const* x, const T* const* next,
                         const T* q, int64_t stride, int64_t count, T* sums,
                         int64_t row_stride) {
  using V = hn::Vec<D>;
  V sum[kTogether][kCount];
#pragma GCC unroll 4
  for (int64_t row = 0; row < kTogether; ++row) {
#pragma GCC unroll 4
    for (int64_t c = 0; c < kCount; ++c) {
      sum[row][c] = hn::LoadU(d, sums + row * row_stride + c * kLanes<T>);
    }
  }
  for (int64_t j = 0; j < count; j += kLanes<T>) {
    V factor[kCount];
#pragma GCC unroll 4
    for (int64_t c = 0; c < kCount; ++c) {
      factor[c] = hn::LoadU(d, q + c * stride + j);
    }
#pragma GCC unroll 4
    for (int64_t row = 0; row < kTogether; ++row) {
      const V value = hn::LoadU(d, x[row] + j);
      __builtin_prefetch(next[row] + j, 0, 2);
#pragma GCC unroll 4
      for (int64_t c = 0; c < kCount; ++c) {
        sum[row][c] = hn::Add(sum[row][c], hn::Mul(value, factor[c]));
      }
    }
  }
#pragma GCC unroll 4
  for (int64_t row = 0; row < kTogether; ++row) {
#pragma GCC unroll 4
    for (int64_t c = 0; c < kCount; ++c) {
      hn::StoreU(sum[row][c], d, sums + row * row_stride + c * kLanes<T>);
    }
  }
}

// sums[row * row_stride + c * kLanes + lane] += x[row][j] * q[c * stride + j].
template <int kCount, typename T>
HWY_NOINLINE void Dot(const T* const* x, const T* const* next, const T* q,
                      int64_t stride, int64_t count, T* sums,
                      int64_t row_stride) {
  const Tag<T> d;
  constexpr int64_t kStep = hn::MaxLanes(Tag<T>());
  const int64_t whole = count - count % kLanes<T>;
  for (int64_t row = 0; row < kRows; row += kTogether) {
    for (int64_t lane = 0; lane < kLanes<T>; lane += kStep) {
      const T* from[kTogether];
      for (int64_t k = 0; k < kTogether; ++k) from[k] = x[row + k] + lane;
      DotLanes<kCount>(d, from, next + row, q + lane, stride, whole,
                       sums + row * row_stride + lane, row_stride);
    }
  }
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < kCount; ++c) {
      T* lanes = sums + row * row_stride + c * kLanes<T>;
      for (int64_t j = whole; j < count; ++j) {
        lanes[j - whole] += x[row][j] * q[c * stride + j];
      }
    }
  }
}

template <typename T>
HWY_INLINE void Dot(int64_t columns, const T* const* x, const T* const* next,
                    const T* q, int64_t stride, int64_t count, T* sums,
                    int64_t row_stride) {
  switch (columns) {
    case 1:
      return Dot<1>(x, next, q, stride, count, sums, row_stride);
    case 2:
      return Dot<2>(x, next, q, stride, count, sums, row_stride);
    case 3:
      return Dot<3>(x, next, q, stride, count, sums, row_stride);
    default:
      return Dot<4>(x, next, q, stride, count, sums, row_stride);
  }
}

// Of equal width, in whole lanes.
template <typename T>
HWY_INLINE int64_t WidthOfChunks(int64_t m) {
  const int64_t chunks =
      std::max<int64_t>(1, (m + kRowsWidth - 1) / kRowsWidth);
  const int64_t width = (m + chunks - 1) / chunks;
  return std::min(kRowsWidth, (width + kLanes<T> - 1) / kLanes<T> * kLanes<T>);
}

template <typename T>
void Rows(const LowRankJob<T>& job, int64_t begin, int64_t end) {
  RowMaker<T, kRowsWidth> maker(job);
  const int64_t width = WidthOfChunks<T>(job.m);
  const int64_t row_stride = job.r * kLanes<T>;
  std::vector<T> sums(static_cast<size_t>(kRows * row_stride));
  for (int64_t i = begin; i < end; i += kRows) {
    std::fill(sums.begin(), sums.end(), T{0});
    for (int64_t j = 0; j < job.m; j += width) {
      const int64_t count = std::min(width, job.m - j);
      const T* rows[kRows];
      maker.Make(i, j, count, rows);
      for (int64_t k = 0; k < job.r; k += kColumns) {
        Dot(std::min(kColumns, job.r - k), rows, maker.next(),
            job.factor + k * job.m + j, job.m, count,
            sums.data() + k * kLanes<T>, row_stride);
      }
    }
    for (int64_t row = 0; row < std::min(kRows, end - i); ++row) {
      for (int64_t k = 0; k < job.r; ++k) {
        job.result[k * job.n + i + row] =
            SumOfLanes(sums.data() + row * row_stride + k * kLanes<T>);
      }
    }
  }
  if (job.stream) hwy::FlushStream();
}

}  // namespace

void RowsF32(const LowRankJob<float>& job, int64_t begin, int64_t end) {
  Rows(job, begin, end);
}
void RowsF64(const LowRankJob<double>& job, int64_t begin, int64_t end) {
  Rows(job, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coxswain {

HWY_EXPORT(RowsF32);
HWY_EXPORT(RowsF64);

void RunRows(const LowRankJob<float>& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(RowsF32)(job, begin, end);
}
void RunRows(const LowRankJob<double>& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(RowsF64)(job, begin, end);
}

}  // namespace coxswain
#endif  // HWY_ONCE
