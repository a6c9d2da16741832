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
void LowRankExchange<T>::Place(const std::vector<LowRankTensor<T>*>& tensors,
                               T* first, T* second, bool p_is_first) {
  matrices_.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    LowRankTensor<T>& tensor = *tensors[i];
    const Span gradient = bucket_.Gradient(bucket_.gradients[i]);
    if (tensor.raw()) {
      raws_.push_back({tensor, gradient, first});
      first += tensor.count;
      continue;
    }
    T*& p = p_is_first ? first : second;
    T*& q = p_is_first ? second : first;
    matrices_.push_back({tensor, gradient, p, q});
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
LowRankPass<T> LowRankExchange<T>::Reconstruction(const Matrix& matrix) {
  LowRankPass<T> pass;
  pass.product = {matrix.p, matrix.q, matrix.tensor.r};
  pass.out = matrix.gradient.data;
  pass.out_type = matrix.gradient.dtype;
  pass.n = matrix.tensor.n;
  pass.m = matrix.tensor.m;
  return pass;
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
