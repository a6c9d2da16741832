#include "hooks/low_rank/acp_sgd_exchange.h"

#include <algorithm>
#include <utility>

#include "hooks/kernels/low_rank.h"
#include "hooks/low_rank/low_rank_factors.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/narrow.h"

namespace coxswain {
namespace {

size_t Size(int64_t count) { return static_cast<size_t>(count); }

// In an odd step P is sent and Q is the basis, in an even one the reverse.
template <typename T>
class AcpSgdExchange : public LowRankExchange<T> {
 public:
  AcpSgdExchange(const Bucket& bucket, std::vector<LowRankTensor<T>*> tensors,
                 Communicator& communicator, const LowRankStep& step)
      : LowRankExchange<T>(bucket, communicator, step),
        tensors_(std::move(tensors)),
        sends_p_(step.number % 2 == 1) {
    for (const LowRankTensor<T>* tensor : tensors_) {
      sent_count_ += tensor->raw() ? tensor->count : SentCount(*tensor);
      basis_count_ += BasisCount(*tensor);
    }
    step.report.elements += bucket.data.count;
    step.report.sent += sent_count_;
  }

  absl::StatusOr<WorkPtr> Advance() override {
    switch (phase_++) {
      case 0:
        return Start();
      case 1:
        if (!this->AllFinite(sent_.get(), sent_count_)) {
          return this->SendReport();
        }
        Finish();
        return WorkPtr();
      default:
        if (this->FinishPoisoned()) {
          for (LowRankTensor<T>* tensor : tensors_) DropOverflow(*tensor);
        }
        return WorkPtr();
    }
  }

 private:
  int64_t SentCount(const LowRankTensor<T>& tensor) const {
    return (sends_p_ ? tensor.n : tensor.m) * tensor.r;
  }
  int64_t BasisCount(const LowRankTensor<T>& tensor) const {
    return (sends_p_ ? tensor.m : tensor.n) * tensor.r;
  }

  // Sends the raw elements, and each matrix's product with its basis.
  WorkPtr Start() {
    sent_ = this->scratch_.template Take<T>(Size(sent_count_));
    basis_ = this->scratch_.template Take<T>(Size(basis_count_));
    ReadyBasis();
    T* out = sent_.get();
    const T* basis = basis_.get();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      LowRankTensor<T>& tensor = *tensors_[i];
      if (tensor.raw()) {
        ReadSpan(Gradient(i), out);
        out += tensor.count;
        continue;
      }
      TakeMatrix(Gradient(i), tensor, basis, out);
      out += SentCount(tensor);
      basis += BasisCount(tensor);
    }
    this->Average(sent_.get(), sent_count_);
    return this->Send(sent_, sent_count_);
  }

  void ReadyBasis() {
    std::vector<FirstFactor<T>> factors;
    T* next = basis_.get();
    for (const LowRankTensor<T>* tensor : tensors_) {
      if (tensor->raw()) continue;
      const std::vector<T>& last = sends_p_ ? tensor->now.q : tensor->now.p;
      const int64_t count = BasisCount(*tensor);
      StartFactor(last, count, next);
      factors.push_back({{next, sends_p_ ? tensor->m : tensor->n, tensor->r},
                         FactorStream(tensor->name, this->step_.number)});
      next += count;
    }
    ReadyFactors(factors, this->step_.config);
  }

  // X = gradient + error, and its product with the basis. What that product
  // does not say of X is the error of this step, of which the factors are
  // noted.
  void TakeMatrix(const Span& gradient, LowRankTensor<T>& tensor,
                  const T* basis, T* out) {
    const LowRankMemory<T>& now = tensor.now;
    LowRankMemory<T>& next = tensor.next;
    if (tensor.keeps_error) next.x.Allocate(tensor.count);
    T* x = tensor.keeps_error ? next.x.data() : nullptr;
    const T* previous = now.has_error ? now.x.data() : nullptr;
    const auto product = ErrorProduct(now, now.has_error ? tensor.r : 0);
    if (sends_p_) {
      AccumulateProject(gradient.data, gradient.dtype, previous, product, x,
                        basis, tensor.r, out, tensor.n, tensor.m);
    } else {
      AccumulateProjectTransposed(gradient.data, gradient.dtype, previous,
                                  product, x, basis, tensor.r, out, tensor.n,
                                  tensor.m);
    }
    if (!tensor.keeps_error) return;
    this->Guard(out, SentCount(tensor));
    (sends_p_ ? next.error_p : next.error_q)
        .assign(out, out + SentCount(tensor));
    (sends_p_ ? next.error_q : next.error_p)
        .assign(basis, basis + BasisCount(tensor));
  }

  // Writes the averages, and declares the outcome staged.
  void Finish() {
    const T* sent = sent_.get();
    const T* basis = basis_.get();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      LowRankTensor<T>& tensor = *tensors_[i];
      if (tensor.raw()) {
        WriteSpan(sent, Gradient(i));
        sent += tensor.count;
        continue;
      }
      FinishMatrix(Gradient(i), tensor, sent, basis);
      sent += SentCount(tensor);
      basis += BasisCount(tensor);
    }
  }

  void FinishMatrix(const Span& gradient, LowRankTensor<T>& tensor,
                    const T* sent, const T* basis) {
    const T* p = sends_p_ ? sent : basis;
    const T* q = sends_p_ ? basis : sent;
    Reconstruct(LowRankProduct<T>{p, q, tensor.r}, gradient.data,
                gradient.dtype, tensor.n, tensor.m);
    tensor.next.p.assign(p, p + tensor.n * tensor.r);
    tensor.next.q.assign(q, q + tensor.m * tensor.r);
    tensor.next.has_error = tensor.keeps_error;
    tensor.staged = true;
  }

  Span Gradient(size_t i) const {
    return this->bucket_.Gradient(this->bucket_.gradients[i]);
  }

  const std::vector<LowRankTensor<T>*> tensors_;
  const bool sends_p_;
  int phase_ = 0;
  int64_t sent_count_ = 0;
  int64_t basis_count_ = 0;
  std::shared_ptr<T> sent_;   // raw elements and factors, by gradient
  std::shared_ptr<T> basis_;  // the other factors, by matrix
};

}  // namespace

template <typename T>
std::unique_ptr<Exchange> MakeAcpSgdExchange(
    const Bucket& bucket, std::vector<LowRankTensor<T>*> tensors,
    Communicator& communicator, const LowRankStep& step) {
  return std::make_unique<AcpSgdExchange<T>>(bucket, std::move(tensors),
                                             communicator, step);
}

template std::unique_ptr<Exchange> MakeAcpSgdExchange<float>(
    const Bucket&, std::vector<LowRankTensor<float>*>, Communicator&,
    const LowRankStep&);
template std::unique_ptr<Exchange> MakeAcpSgdExchange<double>(
    const Bucket&, std::vector<LowRankTensor<double>*>, Communicator&,
    const LowRankStep&);

}  // namespace coxswain
