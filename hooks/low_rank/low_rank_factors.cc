#include "hooks/low_rank/low_rank_factors.h"

#include <algorithm>

#include "base/random.h"

namespace coxswain {
namespace {

template <typename T>
void DrawZeroColumns(const FirstFactor<T>& factor, uint64_t seed) {
  const CounterRandom random(seed, factor.stream);
  const int64_t n = factor.matrix.n;
  for (int64_t k = 0; k < factor.matrix.r; ++k) {
    T* column = factor.matrix.a + k * n;
    const bool zero =
        std::all_of(column, column + n, [](T value) { return value == T{0}; });
    for (int64_t j = 0; zero && j < n; ++j) {
      column[j] =
          static_cast<T>(random.Normal(static_cast<uint64_t>(k * n + j)));
    }
  }
}

}  // namespace

template <typename T>
std::vector<int64_t> OrthogonaliseFactors(
    const std::vector<TallMatrix<T>>& factors, const LowRankConfig& config) {
  if (!config.pytorch) {
    return Orthogonalise(factors, config.method, config.epsilon);
  }
  std::vector<TallMatrix<T>> narrow, wide;
  for (const TallMatrix<T>& factor : factors) {
    (factor.r <= 2 ? narrow : wide).push_back(factor);
  }
  const std::vector<int64_t> zero_narrow =
      Orthogonalise(narrow, Orthogonalisation::kGramSchmidt, config.epsilon);
  const std::vector<int64_t> zero_wide =
      Orthogonalise(wide, config.method, 0.0);
  std::vector<int64_t> zero;
  auto next_narrow = zero_narrow.begin();
  auto next_wide = zero_wide.begin();
  for (const TallMatrix<T>& factor : factors) {
    zero.push_back(factor.r <= 2 ? *next_narrow++ : *next_wide++);
  }
  return zero;
}

uint64_t FactorStream(absl::string_view name, int64_t step) {
  return StableHash(name) ^ Mix64(static_cast<uint64_t>(step));
}

template <typename T>
void ReadyFactors(const std::vector<FirstFactor<T>>& factors,
                  const LowRankConfig& config) {
  std::vector<TallMatrix<T>> all;
  for (const FirstFactor<T>& factor : factors) all.push_back(factor.matrix);
  const std::vector<int64_t> zero = OrthogonaliseFactors(all, config);
  std::vector<TallMatrix<T>> drawn;
  for (size_t i = 0; i < factors.size(); ++i) {
    if (zero[i] == 0) continue;
    DrawZeroColumns(factors[i], config.seed);
    drawn.push_back(factors[i].matrix);
  }
  if (!drawn.empty()) OrthogonaliseFactors(drawn, config);
}

template std::vector<int64_t> OrthogonaliseFactors<float>(
    const std::vector<TallMatrix<float>>&, const LowRankConfig&);
template std::vector<int64_t> OrthogonaliseFactors<double>(
    const std::vector<TallMatrix<double>>&, const LowRankConfig&);
template void ReadyFactors<float>(const std::vector<FirstFactor<float>>&,
                                  const LowRankConfig&);
template void ReadyFactors<double>(const std::vector<FirstFactor<double>>&,
                                   const LowRankConfig&);

}  // namespace coxswain
