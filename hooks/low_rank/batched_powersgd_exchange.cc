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
struct Part {
  int64_t row;     // the first one
  int64_t n;       // rows
  int64_t m;       // columns
  int64_t offset;  // of its elements in the bucket

  // What it needs of the factors, or of what is computed like them.
  std::vector<T> p = {};
  std::vector<T> q = {};
};

template <typename T>
class BatchedPowerSgdExchange : public LowRankExchange<T> {
 public:
  BatchedPowerSgdExchange(const Bucket& bucket, LowRankTensor<T>& matrix,
                          Communicator& communicator, const LowRankStep& step)
      : LowRankExchange<T>(bucket, communicator, step),
        matrix_(matrix),
        n_(matrix.n),
        m_(matrix.m),
        r_(matrix.r) {
    const int64_t full = m_ > 0 ? bucket.data.count / m_ : 0;
    const int64_t tail = bucket.data.count - full * m_;
    parts_.push_back({0, full, m_, 0});
    if (tail > 0) parts_.push_back({full, 1, tail, full * m_});
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
    if (matrix_.keeps_error) matrix_.next.x.Allocate(this->bucket_.data.count);
    std::vector<Part<T>> errors = parts_;
    std::vector<LowRankPass<T>> passes;
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part<T>& part = parts_[i];
      part.p.resize(Size(part.n * r_));
      part.q = RowsOf(q_.get(), m_, r_, 0, part.m);
      passes.push_back(Accumulation(part, errors[i]));
    }
    PassOverRows(passes);
    for (const Part<T>& part : parts_) {
      for (int64_t k = 0; k < r_; ++k) {
        std::copy_n(part.p.data() + k * part.n, part.n,
                    p_.get() + k * n_ + part.row);
      }
    }
  }

  // `error` gets the factors of the error.
  LowRankPass<T> Accumulation(Part<T>& part, Part<T>& error) {
    const LowRankMemory<T>& before = matrix_.error();
    LowRankPass<T> pass = PassOver(part);
    pass.gradient = Gradients(part);
    pass.type = Type();
    if (before.has_error) {
      pass.previous = before.x.data() + part.offset;
      const LowRankProduct<T> product = ErrorProduct(before, r_);
      CopyFactors(product.p, product.q, product.r, error);
      pass.product = {error.p.data(), error.q.data(), product.r};
    }
    if (matrix_.keeps_error) pass.out = matrix_.next.x.data() + part.offset;
    pass.factor = part.q.data();
    pass.r = r_;
    pass.result = part.p.data();
    return pass;
  }

  static LowRankPass<T> PassOver(const Part<T>& part) {
    LowRankPass<T> pass;
    pass.n = part.n;
    pass.m = part.m;
    return pass;
  }

  void CopyFactors(const T* p, const T* q, int64_t r, Part<T>& part) const {
    part.p = RowsOf(p, n_, r, part.row, part.n);
    part.q = RowsOf(q, m_, r, 0, part.m);
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
    const bool keeps = matrix_.keeps_error;
    std::vector<LowRankPass<T>> passes;
    for (Part<T>& part : parts_) {
      CopyFactors(p_.get(), q_.get(), r_, part);
      LowRankPass<T> pass = PassOver(part);
      pass.gradient =
          keeps ? matrix_.next.x.data() + part.offset : Gradients(part);
      pass.type = keeps ? kDTypeOf<T> : Type();
      pass.factor = part.p.data();
      pass.r = r_;
      pass.result = part.q.data();
      passes.push_back(pass);
    }
    passes[0].result = q_.get();  // the tail's share is added
    PassOverColumns(passes);
    for (size_t i = 1; i < parts_.size(); ++i) {
      const Part<T>& tail = parts_[i];
      for (int64_t k = 0; k < r_; ++k) {
        Add(q_.get() + k * m_, tail.q.data() + k * tail.m, tail.m);
      }
    }
  }

  // Writes the averages, and declares the outcome staged.
  void Finish() {
    if (poisoned_ || !this->AllFinite(q_.get(), m_ * r_)) {
      if (this->FinishPoisoned()) DropOverflow(matrix_);
      return;
    }
    std::vector<LowRankPass<T>> passes;
    for (Part<T>& part : parts_) {
      CopyFactors(p_.get(), q_.get(), r_, part);
      passes.push_back(PassOver(part));
      passes.back().product = {part.p.data(), part.q.data(), r_};
      passes.back().out = Gradients(part);
      passes.back().out_type = Type();
    }
    PassOverRows(passes);
    LowRankMemory<T>& next = matrix_.next;
    next.q.clear();
    if (this->step_.config.warm_start) {
      next.q.assign(q_.get(), q_.get() + m_ * r_);
    }
    next.has_error = matrix_.keeps_error;
    matrix_.staged = true;
  }

  DType Type() const { return this->bucket_.data.dtype; }
  void* Gradients(const Part<T>& part) const {
    return this->bucket_.data.Slice(part.offset, 0).data;
  }

  LowRankTensor<T>& matrix_;
  const int64_t n_;
  const int64_t m_;
  const int64_t r_;
  std::vector<Part<T>> parts_;  // the full rows, and the tail if there is one
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
