#include "hooks/kernels/gram.h"

#include <algorithm>
#include <cstdint>

// Highway's order: this file once for each target, then the vectors.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/kernels/gram.cc"
#include "hwy/foreach_target.h"  // NOLINT
#include "hooks/kernels/vectors-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {
namespace {

using Wide = Tag<double>;
constexpr int64_t kWideLanes = kLanes<double>;
constexpr int64_t kStep = hn::MaxLanes(Wide());

// Rows whose columns stay in the first cache while they are worked on.
constexpr int64_t kRowsAtOnce = 512;

template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const double* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const float* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), from));
}
template <class D>
HWY_INLINE void StoreWide(hn::Vec<D> value, D d, double* to) {
  hn::StoreU(value, d, to);
}
template <class D>
HWY_INLINE void StoreWide(hn::Vec<D> value, D /*d*/, float* to) {
  const hn::Rebind<float, D> narrow;
  hn::StoreU(hn::DemoteTo(narrow, value), narrow, to);
}

// sums[c] = the products of column `a` with kCount columns from `b` on.
template <int kCount, typename T>
HWY_NOINLINE void Products(const T* a, const T* b, int64_t n, double* sums) {
  const Wide d;
  HWY_ALIGN double lanes[kCount][kWideLanes];
  const int64_t whole = n - n % kWideLanes;
  for (int64_t lane = 0; lane < kWideLanes; lane += kStep) {
    hn::Vec<Wide> sum[kCount];
#pragma GCC unroll 4
    for (int64_t c = 0; c < kCount; ++c) sum[c] = hn::Zero(d);
    for (int64_t i = lane; i < whole; i += kWideLanes) {
      const auto value = LoadWide(d, a + i);
#pragma GCC unroll 4
      for (int64_t c = 0; c < kCount; ++c) {
        const auto other = LoadWide(d, b + c * n + i);
        sum[c] = hn::Add(sum[c], hn::Mul(value, other));
      }
    }
#pragma GCC unroll 4
    for (int64_t c = 0; c < kCount; ++c) {
      hn::StoreU(sum[c], d, lanes[c] + lane);
    }
  }
  for (int64_t c = 0; c < kCount; ++c) {
    for (int64_t i = whole; i < n; ++i) {
      lanes[c][i - whole] += double{a[i]} * double{b[c * n + i]};
    }
    sums[c] = SumOfLanes(lanes[c]);
  }
}

template <typename T>
HWY_INLINE void GramOf(const T* a, int64_t n, int64_t r, double* gram) {
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t j = i; j < r; j += 4) {
      const T* b = a + j * n;
      double* sums = gram + i * r + j;
      switch (std::min<int64_t>(4, r - j)) {
        case 1:
          Products<1>(a + i * n, b, n, sums);
          break;
        case 2:
          Products<2>(a + i * n, b, n, sums);
          break;
        case 3:
          Products<3>(a + i * n, b, n, sums);
          break;
        default:
          Products<4>(a + i * n, b, n, sums);
      }
    }
  }
}

// Column k from the columns up to it, added from left to right.
template <class D, typename T>
HWY_INLINE void MultiplyColumn(D d, T* a, int64_t n, int64_t r, int64_t k,
                               const double* u, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += hn::MaxLanes(D())) {
    auto sum = hn::Mul(LoadWide(d, a + i), hn::Set(d, u[k]));
    for (int64_t j = 1; j <= k; ++j) {
      const auto weight = hn::Set(d, u[j * r + k]);
      sum = hn::Add(sum, hn::Mul(LoadWide(d, a + j * n + i), weight));
    }
    StoreWide(sum, d, a + k * n + i);
  }
}

template <typename T>
HWY_INLINE void MultiplyRows(T* a, int64_t n, int64_t r, const double* u,
                             int64_t begin, int64_t end) {
  const Wide d;
  const hn::CappedTag<double, 1> one;
  const int64_t whole = end - (end - begin) % kStep;
  // From the right, as a column needs those before it as they were.
  for (int64_t k = r - 1; k >= 0; --k) {
    MultiplyColumn(d, a, n, r, k, u, begin, whole);
    MultiplyColumn(one, a, n, r, k, u, whole, end);
  }
}

template <typename T>
HWY_INLINE void MultiplyAll(T* a, int64_t n, int64_t r, const double* u) {
  for (int64_t i = 0; i < n; i += kRowsAtOnce) {
    MultiplyRows(a, n, r, u, i, std::min(n, i + kRowsAtOnce));
  }
}

}  // namespace

void GramF32(const float* a, int64_t n, int64_t r, double* gram) {
  GramOf(a, n, r, gram);
}
void GramF64(const double* a, int64_t n, int64_t r, double* gram) {
  GramOf(a, n, r, gram);
}
void MultiplyF32(float* a, int64_t n, int64_t r, const double* u) {
  MultiplyAll(a, n, r, u);
}
void MultiplyF64(double* a, int64_t n, int64_t r, const double* u) {
  MultiplyAll(a, n, r, u);
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coxswain {

HWY_EXPORT(GramF32);
HWY_EXPORT(GramF64);
HWY_EXPORT(MultiplyF32);
HWY_EXPORT(MultiplyF64);

void Gram(const float* a, int64_t n, int64_t r, double* gram) {
  HWY_DYNAMIC_DISPATCH(GramF32)(a, n, r, gram);
}
void Gram(const double* a, int64_t n, int64_t r, double* gram) {
  HWY_DYNAMIC_DISPATCH(GramF64)(a, n, r, gram);
}
void MultiplyUpper(float* a, int64_t n, int64_t r, const double* u) {
  HWY_DYNAMIC_DISPATCH(MultiplyF32)(a, n, r, u);
}
void MultiplyUpper(double* a, int64_t n, int64_t r, const double* u) {
  HWY_DYNAMIC_DISPATCH(MultiplyF64)(a, n, r, u);
}

}  // namespace coxswain
#endif  // HWY_ONCE
