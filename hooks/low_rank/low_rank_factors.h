#ifndef COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_FACTORS_H_
#define COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_FACTORS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "hooks/kernels/orthogonalise.h"
#include "hooks/low_rank/low_rank_config.h"

namespace coxswain {

// Orthogonalises as the options say. mode=pytorch does as PyTorch: one and two
// columns by Gram-Schmidt with epsilon, more without it.
template <typename T>
std::vector<int64_t> OrthogonaliseFactors(
    const std::vector<TallMatrix<T>>& factors, const LowRankConfig& config);

// The stream that a factor is drawn from in a step: a pure function, so that
// all ranks draw the same whatever their buckets and histories.
uint64_t FactorStream(absl::string_view name, int64_t step);

// A factor that a step begins with, and where it is drawn from: element (j, k)
// is CounterRandom(seed, stream).Normal(k n + j).
template <typename T>
struct FirstFactor {
  TallMatrix<T> matrix;
  uint64_t stream = 0;
};

// Where the last step left a factor of `count` elements, or zeros, which
// ReadyFactors draws, if it left none.
template <typename T>
void StartFactor(const std::vector<T>& last, int64_t count, T* out) {
  if (last.empty()) {
    std::fill_n(out, count, T{0});
  } else {
    std::copy_n(last.data(), count, out);
  }
}

// Orthogonalises them. Columns that are zero, because the factor is not yet
// drawn or a gradient was zero or of a lower rank, are drawn: they would stay
// zero for ever.
template <typename T>
void ReadyFactors(const std::vector<FirstFactor<T>>& factors,
                  const LowRankConfig& config);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_FACTORS_H_
