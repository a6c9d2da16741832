#include "hooks/low_rank/powersgd_exchange.h"

#include <algorithm>
#include <utility>

#include "hooks/kernels/low_rank.h"
#include "hooks/low_rank/low_rank_factors.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/narrow.h"

namespace coxswain {
namespace {

size_t Size(int64_t count) { return static_cast<size_t>(count); }

template <typename T>
class PowerSgdExchange : public LowRankExchange<T> {
 public:
  PowerSgdExchange(const Bucket& bucket, std::vector<LowRankTensor<T>*> tensors,
                   Communicator& communicator, const LowRankStep& step)
      : LowRankExchange<T>(bucket, communicator, step),
        tensors_(std::move(tensors)),
        config_(step.config) {
    for (const LowRankTensor<T>* tensor : tensors_) {
      first_count_ += tensor->raw() ? tensor->count : tensor->n * tensor->r;
      second_count_ += tensor->m * tensor->r;
    }
    step.report.elements += bucket.data.count;
    step.report.sent += first_count_ + second_count_;
  }

  absl::StatusOr<WorkPtr> Advance() override {
    switch (phase_++) {
      case 0:
        return SendFirst();
      case 1:
        return SendSecond();
      default:
        Finish();
        return WorkPtr();
    }
  }

 private:
  // Sends the raw elements, and X Q of each matrix.
  WorkPtr SendFirst() {
    first_ = this->scratch_.template Take<T>(Size(first_count_));
    second_ = this->scratch_.template Take<T>(Size(second_count_));
    ReadyQ();
    T* out = first_.get();
    const T* q = second_.get();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      LowRankTensor<T>& tensor = *tensors_[i];
      if (tensor.raw()) {
        TakeRaw(Gradient(i), tensor, out);
        out += tensor.count;
        continue;
      }
      TakeMatrix(Gradient(i), tensor, q, out);
      q += tensor.m * tensor.r;
      out += tensor.n * tensor.r;
    }
    if (!config_.pytorch) this->Average(first_.get(), first_count_);
    return this->Send(first_, first_count_);
  }

  // Puts orth(Q) of each matrix into second_, where it stands until X Q is
  // computed.
  void ReadyQ() {
    std::vector<FirstFactor<T>> factors;
    T* next = second_.get();
    for (const LowRankTensor<T>* tensor : tensors_) {
      if (tensor->raw()) continue;
      const int64_t count = tensor->m * tensor->r;
      StartFactor(tensor->now.q, count, next);
      factors.push_back({{next, tensor->m, tensor->r},
                         FactorStream(tensor->name, this->step_.number)});
      next += count;
    }
    ReadyFactors(factors, config_);
  }

  void TakeRaw(const Span& gradient, LowRankTensor<T>& tensor, T* out) {
    ReadSpan(gradient, out);
    if (!tensor.keeps_error) return;
    tensor.next.x.Allocate(tensor.count);
    T* x = tensor.next.x.data();
    const T* error = tensor.now.has_error ? tensor.now.x.data() : nullptr;
    for (int64_t j = 0; j < tensor.count; ++j) {
      if (error != nullptr) out[j] += error[j];
      x[j] = out[j];
    }
  }

  // X = gradient + error, and X Q. Without error feedback the gradient is X.
  void TakeMatrix(const Span& gradient, LowRankTensor<T>& tensor, const T* q,
                  T* p) {
    const LowRankMemory<T>& now = tensor.now;
    if (tensor.keeps_error) tensor.next.x.Allocate(tensor.count);
    AccumulateProject(gradient.data, gradient.dtype,
                      now.has_error ? now.x.data() : nullptr,
                      ErrorProduct(now, now.has_error ? tensor.r : 0),
                      tensor.keeps_error ? tensor.next.x.data() : nullptr, q,
                      tensor.r, p, tensor.n, tensor.m);
    if (tensor.keeps_error) this->Guard(p, tensor.n * tensor.r);
  }

  // Sends each matrix's transpose(X) P.
  WorkPtr SendSecond() {
    if (!this->AllFinite(first_.get(), first_count_)) {
      poisoned_ = true;
      return this->SendReport();
    }
    OrthogonaliseP();
    const T* p = first_.get();
    T* q = second_.get();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      LowRankTensor<T>& tensor = *tensors_[i];
      if (tensor.raw()) {
        p += tensor.count;
        continue;
      }
      Project(Gradient(i), tensor, p, q);
      p += tensor.n * tensor.r;
      q += tensor.m * tensor.r;
    }
    if (!config_.pytorch) this->Average(second_.get(), second_count_);
    return this->Send(second_, second_count_);
  }

  void OrthogonaliseP() {
    std::vector<TallMatrix<T>> factors;
    T* next = first_.get();
    for (const LowRankTensor<T>* tensor : tensors_) {
      if (!tensor->raw()) factors.push_back({next, tensor->n, tensor->r});
      next += tensor->raw() ? tensor->count : tensor->n * tensor->r;
    }
    OrthogonaliseFactors(factors, config_);
  }

  // q = transpose(X) P. The error of the step is X - P transpose(q), of which
  // the factors are noted.
  void Project(const Span& gradient, LowRankTensor<T>& tensor, const T* p,
               T* q) {
    LowRankMemory<T>& next = tensor.next;
    const bool keeps = tensor.keeps_error;
    ProjectTransposed(keeps ? next.x.data() : gradient.data,
                      keeps ? kDTypeOf<T> : gradient.dtype, p, tensor.r, q,
                      tensor.n, tensor.m);
    if (!keeps) return;
    this->Guard(q, tensor.m * tensor.r);
    next.error_p.assign(p, p + tensor.n * tensor.r);
    if (!config_.pytorch) next.error_q.assign(q, q + tensor.m * tensor.r);
  }

  // Writes the averages, and declares the outcome staged.
  void Finish() {
    if (poisoned_ || !this->AllFinite(second_.get(), second_count_)) {
      if (!this->FinishPoisoned()) return;
      for (LowRankTensor<T>* tensor : tensors_) DropOverflow(*tensor);
      return;
    }
    if (config_.pytorch) this->Average(second_.get(), second_count_);
    T* first = first_.get();
    const T* q = second_.get();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      LowRankTensor<T>& tensor = *tensors_[i];
      if (tensor.raw()) {
        FinishRaw(Gradient(i), tensor, first);
        first += tensor.count;
        continue;
      }
      FinishMatrix(Gradient(i), tensor, first, q);
      first += tensor.n * tensor.r;
      q += tensor.m * tensor.r;
    }
  }

  void FinishRaw(const Span& gradient, LowRankTensor<T>& tensor, T* result) {
    if (config_.pytorch) this->Average(result, tensor.count);
    WriteSpan(result, gradient);
    if (!tensor.keeps_error) return;
    T* x = tensor.next.x.data();
    for (int64_t j = 0; j < tensor.count; ++j) x[j] -= result[j];
    tensor.next.has_error = true;
    tensor.staged = true;
  }

  void FinishMatrix(const Span& gradient, LowRankTensor<T>& tensor, const T* p,
                    const T* q) {
    Reconstruct(LowRankProduct<T>{p, q, tensor.r}, gradient.data,
                gradient.dtype, tensor.n, tensor.m);
    LowRankMemory<T>& next = tensor.next;
    const T* q_end = q + tensor.m * tensor.r;
    if (config_.pytorch && tensor.keeps_error) next.error_q.assign(q, q_end);
    next.q.clear();
    if (config_.warm_start) next.q.assign(q, q_end);
    next.has_error = tensor.keeps_error;
    tensor.staged = true;
  }

  Span Gradient(size_t i) const {
    return this->bucket_.Gradient(this->bucket_.gradients[i]);
  }

  const std::vector<LowRankTensor<T>*> tensors_;
  const LowRankConfig& config_;
  int phase_ = 0;
  bool poisoned_ = false;  // on all ranks alike
  int64_t first_count_ = 0;
  int64_t second_count_ = 0;
  std::shared_ptr<T> first_;   // raw elements and P, gradient by gradient
  std::shared_ptr<T> second_;  // Q, matrix by matrix
};

}  // namespace

template <typename T>
std::unique_ptr<Exchange> MakePowerSgdExchange(
    const Bucket& bucket, std::vector<LowRankTensor<T>*> tensors,
    Communicator& communicator, const LowRankStep& step) {
  return std::make_unique<PowerSgdExchange<T>>(bucket, std::move(tensors),
                                               communicator, step);
}

template std::unique_ptr<Exchange> MakePowerSgdExchange<float>(
    const Bucket&, std::vector<LowRankTensor<float>*>, Communicator&,
    const LowRankStep&);
template std::unique_ptr<Exchange> MakePowerSgdExchange<double>(
    const Bucket&, std::vector<LowRankTensor<double>*>, Communicator&,
    const LowRankStep&);

}  // namespace coxswain
