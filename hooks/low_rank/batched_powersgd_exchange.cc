#include "hooks/low_rank/batched_powersgd_exchange.h"

#include <algorithm>
#include <vector>

#include "hooks/kernels/elementwise.h"
#include "hooks/kernels/low_rank.h"
#include "hooks/low_rank/low_rank_factors.h"
#include "hooks/low_rank/low_rank_state.h"

namespace coxswain {
namespace {

size_t Size(int64_t count) { return static_cast<size_t>(count); }

// The matrix is treated as its full rows, and a tail of one row that has only
// the columns within the bucket. So the zeros behind the bucket are neither
// stored nor do they ever have an error.
template <typename T>
class BatchedPowerSgdExchange : public LowRankExchange<T> {
 public:
  BatchedPowerSgdExchange(const Bucket& bucket, LowRankTensor<T>& matrix,
                          Communicator& communicator, const LowRankStep& step)
      : LowRankExchange<T>(bucket, communicator, step),
        matrix_(matrix),
        n_(matrix.n),
        m_(matrix.m),
        r_(matrix.r),
        full_(m_ > 0 ? bucket.data.count / m_ : 0),
        tail_(bucket.data.count - full_ * m_) {
    step.report.elements += bucket.data.count;
    step.report.sent += (n_ + m_) * r_;
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
  // The rows of P, or of what is computed like it, as the two parts need them.
  struct Parts {
    std::vector<T> full;
    std::vector<T> tail;
  };
  Parts Split(const T* p) const {
    return {RowsOf(p, n_, r_, 0, full_),
            RowsOf(p, n_, r_, full_, tail_ > 0 ? 1 : 0)};
  }
  // The rows of Q that the tail meets.
  std::vector<T> TailOf(const T* q) const {
    return RowsOf(q, m_, r_, 0, tail_);
  }

  // Sends X Q.
  WorkPtr SendFirst() {
    p_ = this->scratch_.template Take<T>(Size(n_ * r_));
    q_ = this->scratch_.template Take<T>(Size(m_ * r_));
    ReadyQ();
    Accumulate();
    if (matrix_.keeps_error) this->Guard(p_.get(), n_ * r_);
    this->Average(p_.get(), n_ * r_);
    return this->Send(p_, n_ * r_);
  }

  void ReadyQ() {
    StartFactor(matrix_.now.q, m_ * r_, q_.get());
    const uint64_t stream = FactorStream(matrix_.name, this->step_.number);
    ReadyFactors<T>({{{q_.get(), m_, r_}, stream}}, this->step_.config);
  }

  // X = gradient + error, and X Q into p_. Without error feedback the gradient
  // is X.
  void Accumulate() {
    const LowRankMemory<T>& now = matrix_.now;
    const T* previous = now.has_error ? now.x.data() : nullptr;
    const auto error = ErrorProduct(now, now.has_error ? r_ : 0);
    Parts error_p;
    std::vector<T> error_q;
    if (error.r > 0) {
      error_p = Split(error.p);
      error_q = TailOf(error.q);
    }
    const bool keeps = matrix_.keeps_error;
    if (keeps) matrix_.next.x.Allocate(this->bucket_.data.count);
    T* x = keeps ? matrix_.next.x.data() : nullptr;
    const int64_t offset = full_ * m_;
    std::vector<T> p(Size(full_ * r_));
    AccumulateProject(Gradients(0), Type(), previous,
                      LowRankProduct<T>{error_p.full.data(), error.q, error.r},
                      x, q_.get(), r_, p.data(), full_, m_);
    for (int64_t k = 0; k < r_; ++k) {
      std::copy_n(p.data() + k * full_, full_, p_.get() + k * n_);
    }
    if (tail_ == 0) return;
    const std::vector<T> tail_q = TailOf(q_.get());
    AccumulateProject(
        Gradients(offset), Type(), previous ? previous + offset : nullptr,
        LowRankProduct<T>{error_p.tail.data(), error_q.data(), error.r},
        x ? x + offset : nullptr, tail_q.data(), r_, p.data(), 1, tail_);
    for (int64_t k = 0; k < r_; ++k) p_.get()[k * n_ + full_] = p[Size(k)];
  }

  // Sends transpose(X) P.
  WorkPtr SendSecond() {
    if (!this->AllFinite(p_.get(), n_ * r_)) {
      poisoned_ = true;
      return this->SendReport();
    }
    OrthogonaliseFactors<T>({{p_.get(), n_, r_}}, this->step_.config);
    Project();
    if (matrix_.keeps_error) {
      this->Guard(q_.get(), m_ * r_);
      matrix_.next.error_p.assign(p_.get(), p_.get() + n_ * r_);
      matrix_.next.error_q.assign(q_.get(), q_.get() + m_ * r_);
    }
    this->Average(q_.get(), m_ * r_);
    return this->Send(q_, m_ * r_);
  }

  void Project() {
    const Parts p = Split(p_.get());
    const bool keeps = matrix_.keeps_error;
    const DType type = keeps ? kDTypeOf<T> : Type();
    const int64_t offset = full_ * m_;
    const T* x = matrix_.next.x.data();
    ProjectTransposed(keeps ? x : Gradients(0), type, p.full.data(), r_,
                      q_.get(), full_, m_);
    if (tail_ == 0) return;
    std::vector<T> q(Size(tail_ * r_));
    ProjectTransposed(keeps ? x + offset : Gradients(offset), type,
                      p.tail.data(), r_, q.data(), 1, tail_);
    for (int64_t k = 0; k < r_; ++k) {
      Add(q_.get() + k * m_, q.data() + k * tail_, tail_);
    }
  }

  // Writes the averages, and declares the outcome staged.
  void Finish() {
    if (poisoned_ || !this->AllFinite(q_.get(), m_ * r_)) {
      if (this->FinishPoisoned()) DropOverflow(matrix_);
      return;
    }
    const Parts p = Split(p_.get());
    Reconstruct(LowRankProduct<T>{p.full.data(), q_.get(), r_}, Gradients(0),
                Type(), full_, m_);
    const std::vector<T> tail_q = TailOf(q_.get());
    Reconstruct(LowRankProduct<T>{p.tail.data(), tail_q.data(), r_},
                Gradients(full_ * m_), Type(), tail_ > 0 ? 1 : 0, tail_);
    LowRankMemory<T>& next = matrix_.next;
    next.q.clear();
    if (this->step_.config.warm_start) {
      next.q.assign(q_.get(), q_.get() + m_ * r_);
    }
    next.has_error = matrix_.keeps_error;
    matrix_.staged = true;
  }

  DType Type() const { return this->bucket_.data.dtype; }
  // The bucket's elements from `offset` on.
  void* Gradients(int64_t offset) const {
    return this->bucket_.data.Slice(offset, 0).data;
  }

  LowRankTensor<T>& matrix_;
  const int64_t n_;
  const int64_t m_;
  const int64_t r_;
  const int64_t full_;  // rows
  const int64_t tail_;  // elements of the row after them
  int phase_ = 0;
  bool poisoned_ = false;  // on all ranks alike
  std::shared_ptr<T> p_;
  std::shared_ptr<T> q_;
};

}  // namespace

template <typename T>
std::unique_ptr<Exchange> MakeBatchedPowerSgdExchange(
    const Bucket& bucket, LowRankTensor<T>& matrix, Communicator& communicator,
    const LowRankStep& step) {
  return std::make_unique<BatchedPowerSgdExchange<T>>(bucket, matrix,
                                                      communicator, step);
}

template std::unique_ptr<Exchange> MakeBatchedPowerSgdExchange<float>(
    const Bucket&, LowRankTensor<float>&, Communicator&, const LowRankStep&);
template std::unique_ptr<Exchange> MakeBatchedPowerSgdExchange<double>(
    const Bucket&, LowRankTensor<double>&, Communicator&, const LowRankStep&);

}  // namespace coxswain
