// Rows of X = gradient + previous - product; see vectors-inl.h.

// NOLINTNEXTLINE: the guard is open once for each target
#if defined(COXSWAIN_HOOKS_KERNELS_COMBINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifndef COXSWAIN_HOOKS_KERNELS_COMBINE_INL_H_
#define COXSWAIN_HOOKS_KERNELS_COMBINE_INL_H_
#else
#undef COXSWAIN_HOOKS_KERNELS_COMBINE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hooks/kernels/low_rank_job.h"
#include "hooks/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {

// Rows are worked on four at a time, which share what is loaded of the
// factors, and columns of the factors up to four at a time.
constexpr int64_t kRows = 4;
constexpr int64_t kColumns = 4;

template <typename T>
struct Weights {
  T of[kRows][kColumns] = {};  // [row][column of the factor]
};

// Elements [i, i + 4) of columns [k, k + columns) of a factor whose columns
// are n apart; 0 from n on.
template <typename T>
HWY_INLINE Weights<T> WeightsOf(const T* factor, int64_t i, int64_t k,
                                int64_t columns, int64_t n) {
  Weights<T> weights;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t row = 0; row < std::min(kRows, n - i); ++row) {
      weights.of[row][c] = factor[(k + c) * n + i + row];
    }
  }
  return weights;
}

// What to make of a base `a`, an addend `b` and the product S.
enum class Form {
  kProduct,         // S
  kPlusProduct,     // a + S
  kMinusProduct,    // a - S
  kSumMinusProduct  // (a + b) - S
};

// Four rows of the same columns. `next_a` is what to fetch into the cache on
// the way: the rows that come after these.
template <typename T>
struct RowSources {
  const T* a[kRows];
  const T* b[kRows];
  const T* next_a[kRows];
};

template <Form kForm, int kCount, class D, typename T = hn::TFromD<D>>
HWY_INLINE void CombineRange(D d, const RowSources<T>& from,
                             const Weights<T>& weights, const T* q,
                             int64_t stride, T* const* to, int64_t begin,
                             int64_t end) {
  using V = hn::Vec<D>;
  constexpr int64_t kStep = hn::MaxLanes(D());
  V w[kRows][kColumns];
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < kCount; ++c) {
      w[row][c] = hn::Set(d, weights.of[row][c]);
    }
  }
  for (int64_t j = begin; j < end; j += kStep) {
    V factor[kColumns];
#pragma GCC unroll 4
    for (int64_t c = 0; c < kCount; ++c) {
      factor[c] = hn::LoadU(d, q + c * stride + j);
    }
#pragma GCC unroll 4
    for (int64_t row = 0; row < kRows; ++row) {
      V value;
      if constexpr (kForm != Form::kProduct) {
        value = hn::LoadU(d, from.a[row] + j);
        __builtin_prefetch(from.next_a[row] + j, 0, 2);
      }
      if constexpr (kForm == Form::kSumMinusProduct) {
        value = hn::Add(value, hn::LoadU(d, from.b[row] + j));
      }
      if constexpr (kCount > 0) {
        const V product = SumOfProducts<kCount>(w[row], factor);
        if constexpr (kForm == Form::kProduct) value = product;
        if constexpr (kForm == Form::kPlusProduct) {
          value = hn::Add(value, product);
        }
        if constexpr (kForm == Form::kMinusProduct ||
                      kForm == Form::kSumMinusProduct) {
          value = hn::Sub(value, product);
        }
      }
      hn::StoreU(value, d, to[row] + j);
    }
  }
}

// SumOfProducts of up to four numbers.
template <typename T>
HWY_INLINE T SumOfSome(int64_t count, const T* a, const T* b) {
  T sum = a[0] * b[0];
  if (count > 1) sum += a[1] * b[1];
  if (count == 3) sum += a[2] * b[2];
  if (count == 4) sum += a[2] * b[2] + a[3] * b[3];
  return sum;
}

// What vectors leave over: compiled once for all forms, as it is short.
template <typename T>
HWY_NOINLINE void CombineRest(Form form, int64_t columns,
                              const RowSources<T>& from,
                              const Weights<T>& weights, const T* q,
                              int64_t stride, T* const* to, int64_t begin,
                              int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    T factor[kColumns];
    for (int64_t c = 0; c < columns; ++c) factor[c] = q[c * stride + j];
    for (int64_t row = 0; row < kRows; ++row) {
      T value = form == Form::kProduct ? T{0} : from.a[row][j];
      if (form == Form::kSumMinusProduct) value += from.b[row][j];
      if (columns > 0) {
        const T product = SumOfSome(columns, weights.of[row], factor);
        if (form == Form::kProduct) {
          value = product;
        } else if (form == Form::kPlusProduct) {
          value += product;
        } else {
          value -= product;
        }
      }
      to[row][j] = value;
    }
  }
}

template <Form kForm, int kCount, typename T>
HWY_NOINLINE void Combine(const RowSources<T>& from, const Weights<T>& weights,
                          const T* q, int64_t stride, T* const* to,
                          int64_t count) {
  const Tag<T> d;
  const int64_t whole = count - count % hn::MaxLanes(Tag<T>());
  CombineRange<kForm, kCount>(d, from, weights, q, stride, to, 0, whole);
  if (whole == count) return;
  CombineRest(kForm, kCount, from, weights, q, stride, to, whole, count);
}

template <Form kForm, typename T>
HWY_INLINE void Combine(int64_t columns, const RowSources<T>& from,
                        const Weights<T>& weights, const T* q, int64_t stride,
                        T* const* to, int64_t count) {
  switch (columns) {
    case 1:
      return Combine<kForm, 1>(from, weights, q, stride, to, count);
    case 2:
      return Combine<kForm, 2>(from, weights, q, stride, to, count);
    case 3:
      return Combine<kForm, 3>(from, weights, q, stride, to, count);
    default:
      return Combine<kForm, 4>(from, weights, q, stride, to, count);
  }
}

template <typename T>
struct WideningOfRow {
  const uint16_t* in;
  T* out;
  int64_t count;
  template <class Format>
  HWY_INLINE void Run() const {
    WidenRow<Format>(in, out, count, false);
  }
};

template <typename T>
struct NarrowingOfRow {
  const T* in;
  uint16_t* out;
  int64_t count;
  bool stream;
  template <class Format>
  HWY_INLINE void Run() const {
    NarrowRow<Format>(in, out, count, T{1}, stream);
  }
};

inline bool IsNarrow(DType type) {
  return type == DType::kFloat16 || type == DType::kBFloat16;
}

// Makes four rows of X, over up to kWidth columns, in memory that stays in the
// first cache.
template <typename T, int64_t kWidth>
class RowMaker {
 public:
  explicit RowMaker(const LowRankJob<T>& job) : job_(job) {}

  // Points `rows` at columns [j, j + count) of the rows [i, i + 4) of X. Rows
  // from n on repeat the last one. Writes to the job's `out`.
  void Make(int64_t i, int64_t j, int64_t count, const T** rows) {
    const int64_t valid = std::min(kRows, job_.n - i);
    RowSources<T> from;
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t at = (i + std::min(row, valid - 1)) * job_.m + j;
      from.a[row] = Gradient(at, row, count);
      from.b[row] = job_.previous == nullptr ? nullptr : job_.previous + at;
      // The rows after these, if there are some.
      const int64_t ahead = i + kRows + row < job_.n ? kRows * job_.m : 0;
      from.next_a[row] =
          IsNarrow(job_.type) ? from.a[row] : from.a[row] + ahead;
      if (job_.previous != nullptr) {
        next_[row] = from.b[row] + ahead;
      } else {
        next_[row] = IsComputed() ? rows_[row] : from.next_a[row];
      }
      rows[row] = from.a[row];
    }
    if (IsComputed()) {
      Compute(from, i, j, count);
      for (int64_t row = 0; row < kRows; ++row) rows[row] = rows_[row];
    }
    if (job_.out == nullptr) return;
    for (int64_t row = 0; row < valid; ++row) {
      Emit(rows[row], (i + row) * job_.m + j, count);
    }
  }

  // For code that works on the rows to fetch into the cache on the way, so that
  // memory is read in this phase too: rows of `previous` (or of the gradient,
  // if X is nothing else) that come after these; any address if there are none.
  const T* const* next() const { return next_; }

  // Returns whether X is something else than the gradient as it is.
  bool IsComputed() const {
    return job_.gradient == nullptr || job_.previous != nullptr ||
           job_.product.r > 0;
  }

 private:
  const T* Gradient(int64_t at, int64_t row, int64_t count) {
    if (job_.gradient == nullptr) return nullptr;
    if (!IsNarrow(job_.type)) {
      return static_cast<const T*>(job_.gradient) + at;
    }
    const auto* narrow = static_cast<const uint16_t*>(job_.gradient) + at;
    WithFormat(job_.type, WideningOfRow<T>{narrow, wide_[row], count});
    return wide_[row];
  }

  void Compute(RowSources<T>& from, int64_t i, int64_t j, int64_t count) {
    T* to[kRows];
    for (int64_t row = 0; row < kRows; ++row) to[row] = rows_[row];
    const LowRankProduct<T>& product = job_.product;
    if (product.r == 0) return ComputeWithoutProduct(from, to, count);
    for (int64_t k = 0; k < product.r; k += kColumns) {
      const int64_t columns = std::min(kColumns, product.r - k);
      const auto weights = WeightsOf(product.p, i, k, columns, job_.n);
      const T* q = product.q + k * job_.m + j;
      if (job_.gradient == nullptr) {
        if (k == 0) {
          Combine<Form::kProduct>(columns, from, weights, q, job_.m, to, count);
        } else {
          Combine<Form::kPlusProduct>(columns, from, weights, q, job_.m, to,
                                      count);
        }
      } else if (k == 0 && job_.previous != nullptr) {
        Combine<Form::kSumMinusProduct>(columns, from, weights, q, job_.m, to,
                                        count);
      } else {
        Combine<Form::kMinusProduct>(columns, from, weights, q, job_.m, to,
                                     count);
      }
      // The next columns work on what these made.
      for (int64_t row = 0; row < kRows; ++row) {
        from.a[row] = from.next_a[row] = rows_[row];
      }
    }
  }

  void ComputeWithoutProduct(const RowSources<T>& from, T* const* to,
                             int64_t count) {
    if (job_.gradient == nullptr) {
      for (T* row : rows_) std::fill(row, row + count, T{0});
    } else {
      const T* q = nullptr;
      Combine<Form::kSumMinusProduct, 0>(from, Weights<T>(), q, 0, to, count);
    }
  }

  void Emit(const T* row, int64_t at, int64_t count) {
    if (IsNarrow(job_.out_type)) {
      auto* out = static_cast<uint16_t*>(job_.out) + at;
      WithFormat(job_.out_type,
                 NarrowingOfRow<T>{row, out, count, job_.stream});
    } else {
      CopyRow(row, static_cast<T*>(job_.out) + at, count, job_.stream);
    }
  }

  const LowRankJob<T>& job_;
  const T* next_[kRows];
  alignas(64) T rows_[kRows][kWidth];
  alignas(64) T wide_[kRows][kWidth];
};

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#endif  // COXSWAIN_HOOKS_KERNELS_COMBINE_INL_H_
