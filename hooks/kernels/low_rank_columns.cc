#include <cstdint>
#include <vector>

#include "hooks/kernels/low_rank_job.h"

// Highway's order: this file once for each target, then the vectors.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/kernels/low_rank_columns.cc"
#include "hwy/foreach_target.h"  // NOLINT
#include "hooks/kernels/combine-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {
namespace {

// Columns of X at a time, whose sums then fit into the first cache.
constexpr int64_t kColumnsWidth = 1024;
// Rows whose sum is added to the result as one.
constexpr int64_t kPanel = 128;

// sums[c * stride + j] += the sum over kTogether rows of weight * row[j].
// Fetches `next` on the way.
template <int kTogether, int kCount, class D, typename T = hn::TFromD<D>>
HWY_INLINE void AxpyRange(D d, const T* const* x, const T* const* next,
                          const Weights<T>& weights, T* sums, int64_t stride,
                          int64_t begin, int64_t end) {
  using V = hn::Vec<D>;
  constexpr int64_t kStep = hn::MaxLanes(D());
  V w[kCount][kTogether];
  for (int64_t c = 0; c < kCount; ++c) {
    for (int64_t row = 0; row < kTogether; ++row) {
      w[c][row] = hn::Set(d, weights.of[row][c]);
    }
  }
  for (int64_t j = begin; j < end; j += kStep) {
    V value[kTogether];
#pragma GCC unroll 4
    for (int64_t row = 0; row < kTogether; ++row) {
      value[row] = hn::LoadU(d, x[row] + j);
      __builtin_prefetch(next[row] + j, 0, 2);
    }
#pragma GCC unroll 4
    for (int64_t c = 0; c < kCount; ++c) {
      T* to = sums + c * stride + j;
      const V sum = SumOfProducts<kTogether>(w[c], value);
      hn::StoreU(hn::Add(hn::LoadU(d, to), sum), d, to);
    }
  }
}

// What vectors leave over: compiled once for all counts, as it is short.
template <typename T>
HWY_NOINLINE void AxpyRest(int64_t together, int64_t columns, const T* const* x,
                           const Weights<T>& weights, T* sums, int64_t stride,
                           int64_t begin, int64_t end) {
  for (int64_t c = 0; c < columns; ++c) {
    T weight[kRows];
    for (int64_t row = 0; row < kRows; ++row) weight[row] = weights.of[row][c];
    for (int64_t j = begin; j < end; ++j) {
      T value[kRows];
      for (int64_t row = 0; row < together; ++row) value[row] = x[row][j];
      sums[c * stride + j] += SumOfSome(together, weight, value);
    }
  }
}

template <int kTogether, int kCount, typename T>
HWY_NOINLINE void Axpy(const T* const* x, const T* const* next,
                       const Weights<T>& weights, T* sums, int64_t stride,
                       int64_t count) {
  const Tag<T> d;
  const int64_t whole = count - count % hn::MaxLanes(Tag<T>());
  AxpyRange<kTogether, kCount>(d, x, next, weights, sums, stride, 0, whole);
  if (whole == count) return;
  AxpyRest(kTogether, kCount, x, weights, sums, stride, whole, count);
}

// Four rows.
template <typename T>
HWY_INLINE void AxpyRows(int64_t columns, const T* const* x,
                         const T* const* next, const Weights<T>& weights,
                         T* sums, int64_t stride, int64_t count) {
  switch (columns) {
    case 1:
      return Axpy<kRows, 1>(x, next, weights, sums, stride, count);
    case 2:
      return Axpy<kRows, 2>(x, next, weights, sums, stride, count);
    case 3:
      return Axpy<kRows, 3>(x, next, weights, sums, stride, count);
    default:
      return Axpy<kRows, 4>(x, next, weights, sums, stride, count);
  }
}

// Columns [j, j + count) of the job, count <= kColumnsWidth.
template <typename T>
class Tile {
 public:
  Tile(const LowRankJob<T>& job, RowMaker<T, kColumnsWidth>& maker, T* sums)
      : job_(job), maker_(maker), sums_(sums) {}

  void Run(int64_t j, int64_t count) {
    for (int64_t k = 0; k < job_.r; ++k) {
      T* to = job_.result + k * job_.m + j;
      std::fill(to, to + count, T{0});
    }
    for (int64_t i = 0; i < job_.n; i += kPanel) {
      std::fill(sums_, sums_ + job_.r * count, T{0});
      const int64_t end = std::min(job_.n, i + kPanel);
      for (int64_t row = i; row < end; row += kRows) AddRows(row, j, count);
      AddSums(j, count);
    }
  }

 private:
  void AddRows(int64_t i, int64_t j, int64_t count) {
    const T* rows[kRows];
    maker_.Make(i, j, count, rows);
    if (i + kRows > job_.n) return AddRowsOneByOne(rows, i, count);
    for (int64_t k = 0; k < job_.r; k += kColumns) {
      const int64_t columns = std::min(kColumns, job_.r - k);
      const auto weights = WeightsOf(job_.factor, i, k, columns, job_.n);
      AxpyRows(columns, rows, maker_.next(), weights, sums_ + k * count, count,
               count);
    }
  }

  void AddRowsOneByOne(const T* const* rows, int64_t i, int64_t count) {
    for (int64_t row = 0; row < job_.n - i; ++row) {
      for (int64_t k = 0; k < job_.r; ++k) {
        const auto weight = WeightsOf(job_.factor, i + row, k, 1, job_.n);
        Axpy<1, 1>(rows + row, rows + row, weight, sums_ + k * count, count,
                   count);
      }
    }
  }

  void AddSums(int64_t j, int64_t count) {
    for (int64_t k = 0; k < job_.r; ++k) {
      T* to = job_.result + k * job_.m + j;
      const T* from = sums_ + k * count;
      for (int64_t at = 0; at < count; ++at) to[at] += from[at];
    }
  }

  const LowRankJob<T>& job_;
  RowMaker<T, kColumnsWidth>& maker_;
  T* sums_;
};

template <typename T>
void Columns(const LowRankJob<T>& job, int64_t begin, int64_t end) {
  const int64_t tiles = (end - begin + kColumnsWidth - 1) / kColumnsWidth;
  if (tiles == 0) return;
  const int64_t even = (end - begin + tiles - 1) / tiles;
  const int64_t width =
      std::min(kColumnsWidth, (even + kLanes<T> - 1) / kLanes<T> * kLanes<T>);
  RowMaker<T, kColumnsWidth> maker(job);
  std::vector<T> sums(static_cast<size_t>(job.r * width));
  Tile<T> tile(job, maker, sums.data());
  for (int64_t j = begin; j < end; j += width) {
    tile.Run(j, std::min(width, end - j));
  }
  if (job.stream) hwy::FlushStream();
}

}  // namespace

void ColumnsF32(const LowRankJob<float>& job, int64_t begin, int64_t end) {
  Columns(job, begin, end);
}
void ColumnsF64(const LowRankJob<double>& job, int64_t begin, int64_t end) {
  Columns(job, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coxswain {

HWY_EXPORT(ColumnsF32);
HWY_EXPORT(ColumnsF64);

void RunColumns(const LowRankJob<float>& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(ColumnsF32)(job, begin, end);
}
void RunColumns(const LowRankJob<double>& job, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(ColumnsF64)(job, begin, end);
}

}  // namespace coxswain
#endif  // HWY_ONCE
