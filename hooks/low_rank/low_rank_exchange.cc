#include "hooks/low_rank/low_rank_exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "hooks/kernels/elementwise.h"
#include "hooks/narrow.h"

namespace coxswain {

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
