#include "hooks/low_rank/low_rank_exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/random.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/narrow.h"

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

template <typename T>
LowRankExchange<T>::LowRankExchange(const Bucket& bucket,
                                    Communicator& communicator,
                                    const LowRankStep& step)
    : bucket_(bucket),
      step_(step),
      scratch_(step.scratch),
      communicator_(&communicator) {
  if (IsWide(bucket.data.dtype)) return;
  narrow_.emplace(communicator, bucket.data.dtype, scratch_);
  communicator_ = &*narrow_;
}

template <typename T>
void LowRankExchange<T>::Place(const std::vector<LowRankTensor<T>*>& tensors,
                               T* first, T* second, bool p_is_first) {
  matrices_.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    LowRankTensor<T>& tensor = *tensors[i];
    const GradientSlot& slot = bucket_.gradients[i];
    const Span gradient = bucket_.Gradient(slot);
    if (tensor.raw()) {
      raws_.push_back({tensor, gradient, slot.offset, first});
      first += tensor.count;
      continue;
    }
    T*& p = p_is_first ? first : second;
    T*& q = p_is_first ? second : first;
    matrices_.push_back({tensor, gradient, slot.offset, p, q});
    p += matrices_.back().p_count();
    q += matrices_.back().q_count();
  }
}

template <typename T>
LowRankPass<T> LowRankExchange<T>::Accumulation(const Matrix& matrix) {
  LowRankTensor<T>& tensor = matrix.tensor;
  const LowRankMemory<T>& error = tensor.error();
  LowRankPass<T> pass;
  pass.gradient = matrix.gradient.data;
  pass.type = matrix.gradient.dtype;
  if (error.has_error) {
    pass.previous = error.x.data();
    pass.product = ErrorProduct(error, tensor.r);
  }
  if (tensor.keeps_error) {
    tensor.next.x.Allocate(tensor.count);
    pass.out = tensor.next.x.data();
  }
  pass.r = tensor.r;
  pass.n = tensor.n;
  pass.m = tensor.m;
  return pass;
}

template <typename T>
void LowRankExchange<T>::WriteAverages() {
  for (const Raw& raw : raws_) {
    const Range kept = Kept(raw.offset, raw.gradient.count);
    WriteSpan(raw.values + kept.begin,
              raw.gradient.Slice(kept.begin, kept.count));
  }
  std::vector<LowRankPass<T>> passes;
  std::vector<std::vector<T>> parts;  // rows of P, which the passes point to
  passes.reserve(matrices_.size());
  parts.reserve(matrices_.size());
  for (const Matrix& matrix : matrices_) {
    const int64_t n = matrix.tensor.n;
    const int64_t m = matrix.tensor.m;
    const Range rows = KeptRows(matrix.offset, n, m);
    if (rows.count == 0) continue;
    LowRankPass<T>& pass = passes.emplace_back();
    pass.product = {matrix.p, matrix.q, matrix.tensor.r};
    if (rows.count < n) {
      pass.product.p = parts
                           .emplace_back(RowsOf(matrix.p, n, matrix.tensor.r,
                                                rows.begin, rows.count))
                           .data();
    }
    pass.out = matrix.gradient.Slice(rows.begin * m, rows.count * m).data;
    pass.out_type = matrix.gradient.dtype;
    pass.n = rows.count;
    pass.m = m;
  }
  PassOverRows(passes);
}

template <typename T>
typename LowRankExchange<T>::Range LowRankExchange<T>::Kept(
    int64_t offset, int64_t count) const {
  if (!step_.slices.has_value()) return {0, count};
  const int64_t elements = bucket_.data.count;
  const int rank = communicator_->rank();
  const int64_t begin = step_.slices->begin(elements, rank) - offset;
  const int64_t end = begin + step_.slices->count(elements, rank);
  const int64_t first = std::clamp<int64_t>(begin, 0, count);
  return {first, std::clamp<int64_t>(end, first, count) - first};
}

template <typename T>
typename LowRankExchange<T>::Range LowRankExchange<T>::KeptRows(
    int64_t offset, int64_t rows, int64_t columns) const {
  const Range kept = Kept(offset, rows * columns);
  if (kept.count == 0) return {};
  const int64_t first = kept.begin / columns;
  const int64_t end = (kept.begin + kept.count + columns - 1) / columns;
  return {first, end - first};
}

template <typename T>
WorkPtr LowRankExchange<T>::Send(const std::shared_ptr<T>& data,
                                 int64_t count) {
  if (count == 0) return Work::Ended(absl::OkStatus());
  WorkPtr work =
      communicator_->AllReduce(Span{data.get(), count, kDTypeOf<T>, Device()});
  work->OnDone([keep = data](const absl::Status&) {});
  return work;
}

template <typename T>
WorkPtr LowRankExchange<T>::SendReport() {
  search_.emplace(bucket_, step_.parameters);
  return search_->Start(*communicator_);
}

template <typename T>
bool LowRankExchange<T>::FinishPoisoned() {
  step_.report.poisoned = true;
  FillWithNan(bucket_.data);
  if (!search_.has_value()) return true;  // all were finite in the first sum
  std::vector<NonFiniteGradient> found = search_->Found();
  for (NonFiniteGradient& gradient : found) {
    step_.report.non_finite.push_back(std::move(gradient));
  }
  return found.empty();
}

template <typename T>
bool LowRankExchange<T>::AllFinite(const T* values, int64_t count) {
  return CountNonFinite(values, count) == 0;
}

template <typename T>
void LowRankExchange<T>::Guard(T* factors, int64_t count) {
  constexpr T kLimit = std::numeric_limits<T>::max() / 256;
  T largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(factors[i]));
  }
  if (largest > kLimit) factors[0] = std::numeric_limits<T>::quiet_NaN();
}

template <typename T>
void LowRankExchange<T>::Average(T* values, int64_t count) const {
  const int ranks = communicator_->size();
  if (ranks > 1) Divide(values, count, static_cast<T>(ranks));
}

template class LowRankExchange<float>;
template class LowRankExchange<double>;

}  // namespace coxswain
