#include <algorithm>
#include <cstdint>

#include "hooks/kernels/gram.h"

// Highway's order: this file once for each target, then the vectors.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hooks/kernels/gram_fast.cc"
#include "hwy/foreach_target.h"  // NOLINT
#include "hooks/kernels/vectors-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace coxswain {
namespace HWY_NAMESPACE {
namespace {

using Wide = Tag<double>;
using Narrow = Tag<float>;
constexpr int64_t kWideLanes = kLanes<double>;
constexpr int64_t kWidth = hn::MaxLanes(Narrow());

// Rows whose products are added up in float, in two steps.
constexpr int64_t kInnerRows = 8 * kLanes<float>;
constexpr int64_t kOuterRows = 8 * kInnerRows;

template <int64_t kCount>
constexpr int64_t kPairs = kCount*(kCount + 1) / 2;

// The products of all pairs of kCount columns over at most kOuterRows rows
// [begin, end), as partial sums: pair after pair, kLanes each.
template <int64_t kCount>
HWY_INLINE void BlockProducts(const float* a, int64_t n, int64_t begin,
                              int64_t end, float* lanes) {
  using V = hn::Vec<Narrow>;
  const Narrow d;
  const int64_t whole = end - (end - begin) % kLanes<float>;
  for (int64_t lane = 0; lane < kLanes<float>; lane += kWidth) {
    V outer[kPairs<kCount>];
#pragma GCC unroll 16
    for (int64_t pair = 0; pair < kPairs<kCount>; ++pair) {
      outer[pair] = hn::Zero(d);
    }
    for (int64_t block = begin; block < whole; block += kInnerRows) {
      const int64_t block_end = std::min(whole, block + kInnerRows);
      V inner[kPairs<kCount>];
#pragma GCC unroll 16
      for (int64_t pair = 0; pair < kPairs<kCount>; ++pair) {
        inner[pair] = hn::Zero(d);
      }
      for (int64_t i = block + lane; i < block_end; i += kLanes<float>) {
        V value[kCount];
#pragma GCC unroll 4
        for (int64_t c = 0; c < kCount; ++c) {
          value[c] = hn::LoadU(d, a + c * n + i);
        }
        int64_t pair = 0;
#pragma GCC unroll 4
        for (int64_t c = 0; c < kCount; ++c) {
#pragma GCC unroll 4
          for (int64_t e = c; e < kCount; ++e, ++pair) {
            inner[pair] = hn::Add(inner[pair], hn::Mul(value[c], value[e]));
          }
        }
      }
#pragma GCC unroll 16
      for (int64_t pair = 0; pair < kPairs<kCount>; ++pair) {
        outer[pair] = hn::Add(outer[pair], inner[pair]);
      }
    }
#pragma GCC unroll 16
    for (int64_t pair = 0; pair < kPairs<kCount>; ++pair) {
      hn::StoreU(outer[pair], d, lanes + pair * kLanes<float> + lane);
    }
  }
  for (int64_t i = whole; i < end; ++i) {
    float* lane = lanes + (i - whole);
    for (int64_t c = 0; c < kCount; ++c) {
      for (int64_t e = c; e < kCount; ++e, lane += kLanes<float>) {
        *lane += a[c * n + i] * a[e * n + i];
      }
    }
  }
}

template <int64_t kCount>
HWY_NOINLINE void FastGramOf(const float* a, int64_t n, double* gram) {
  HWY_ALIGN double sums[kPairs<kCount> * kWideLanes] = {};
  HWY_ALIGN float lanes[kPairs<kCount> * kLanes<float>];
  for (int64_t i = 0; i < n; i += kOuterRows) {
    BlockProducts<kCount>(a, n, i, std::min(n, i + kOuterRows), lanes);
    for (int64_t pair = 0; pair < kPairs<kCount>; ++pair) {
      const float* from = lanes + pair * kLanes<float>;
      double* to = sums + pair * kWideLanes;
      for (int64_t k = 0; k < kWideLanes; ++k) {
        to[k] += double{from[k]} + double{from[kWideLanes + k]};
      }
    }
  }
  double* pair = sums;
  for (int64_t c = 0; c < kCount; ++c) {
    for (int64_t e = c; e < kCount; ++e, pair += kWideLanes) {
      gram[c * kCount + e] = SumOfLanes(pair);
    }
  }
}

template <int64_t kCount, class D>
HWY_INLINE void FastMultiplyRange(D d, float* a, int64_t n, const float* u,
                                  int64_t begin, int64_t end) {
  using V = hn::Vec<D>;
  V weights[kCount][kCount];  // by columns of U
#pragma GCC unroll 4
  for (int64_t k = 0; k < kCount; ++k) {
#pragma GCC unroll 4
    for (int64_t j = 0; j <= k; ++j)
      weights[k][j] = hn::Set(d, u[j * kCount + k]);
  }
  for (int64_t i = begin; i < end; i += hn::MaxLanes(D())) {
    V value[kCount];
#pragma GCC unroll 4
    for (int64_t k = 0; k < kCount; ++k) value[k] = hn::LoadU(d, a + k * n + i);
    hn::StoreU(SumOfProducts<1>(value, weights[0]), d, a + i);
    if constexpr (kCount > 1) {
      hn::StoreU(SumOfProducts<2>(value, weights[1]), d, a + n + i);
    }
    if constexpr (kCount > 2) {
      hn::StoreU(SumOfProducts<3>(value, weights[2]), d, a + 2 * n + i);
    }
    if constexpr (kCount > 3) {
      hn::StoreU(SumOfProducts<4>(value, weights[3]), d, a + 3 * n + i);
    }
  }
}

template <int64_t kCount>
HWY_NOINLINE void FastMultiplyOf(float* a, int64_t n, const double* u) {
  float weights[kCount * kCount];
  for (int64_t i = 0; i < kCount; ++i) {
    for (int64_t j = i; j < kCount; ++j) {
      weights[i * kCount + j] = static_cast<float>(u[i * kCount + j]);
    }
  }
  const Narrow d;
  const int64_t whole = n - n % kWidth;
  FastMultiplyRange<kCount>(d, a, n, weights, 0, whole);
  const hn::CappedTag<float, 1> one;
  FastMultiplyRange<kCount>(one, a, n, weights, whole, n);
}

}  // namespace

void FastGramF32(const float* a, int64_t n, int64_t r, double* gram) {
  switch (r) {
    case 1:
      return FastGramOf<1>(a, n, gram);
    case 2:
      return FastGramOf<2>(a, n, gram);
    case 3:
      return FastGramOf<3>(a, n, gram);
    default:
      return FastGramOf<4>(a, n, gram);
  }
}
void FastMultiplyF32(float* a, int64_t n, int64_t r, const double* u) {
  switch (r) {
    case 1:
      return FastMultiplyOf<1>(a, n, u);
    case 2:
      return FastMultiplyOf<2>(a, n, u);
    case 3:
      return FastMultiplyOf<3>(a, n, u);
    default:
      return FastMultiplyOf<4>(a, n, u);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace coxswain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coxswain {

HWY_EXPORT(FastGramF32);
HWY_EXPORT(FastMultiplyF32);

void FastGram(const float* a, int64_t n, int64_t r, double* gram) {
  HWY_DYNAMIC_DISPATCH(FastGramF32)(a, n, r, gram);
}
void FastMultiplyUpper(float* a, int64_t n, int64_t r, const double* u) {
  HWY_DYNAMIC_DISPATCH(FastMultiplyF32)(a, n, r, u);
}

}  // namespace coxswain
#endif  // HWY_ONCE
