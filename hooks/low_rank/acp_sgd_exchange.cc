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
  using typename LowRankExchange<T>::Matrix;
  using typename LowRankExchange<T>::Raw;

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

  // What is sent of a matrix, and the basis.
  T* Sent(const Matrix& matrix) const { return sends_p_ ? matrix.p : matrix.q; }
  T* Basis(const Matrix& matrix) const {
    return sends_p_ ? matrix.q : matrix.p;
  }

  // Sends the raw elements, and each matrix's product with its basis.
  WorkPtr Start() {
    sent_ = this->scratch_.template Take<T>(Size(sent_count_));
    basis_ = this->scratch_.template Take<T>(Size(basis_count_));
    this->Place(tensors_, sent_.get(), basis_.get(), sends_p_);
    ReadyBasis();
    for (const Raw& raw : this->raws_) ReadSpan(raw.gradient, raw.values);
    TakeMatrices();
    this->Average(sent_.get(), sent_count_);
    return this->Send(sent_, sent_count_);
  }

  void ReadyBasis() {
    std::vector<FirstFactor<T>> factors;
    for (const Matrix& matrix : this->matrices_) {
      const LowRankTensor<T>& tensor = matrix.tensor;
      T* basis = Basis(matrix);
      StartFactor(sends_p_ ? tensor.now.q : tensor.now.p, BasisCount(tensor),
                  basis);
      factors.push_back({{basis, sends_p_ ? tensor.m : tensor.n, tensor.r},
                         FactorStream(tensor.name, this->step_.number)});
    }
    ReadyFactors(factors, this->step_.config);
  }

  // X = gradient + error, and its product with the basis. What that product
  // does not say of X is the error of this step, of which the factors are
  // noted.
  void TakeMatrices() {
    std::vector<LowRankPass<T>> passes;
    passes.reserve(this->matrices_.size());
    for (const Matrix& matrix : this->matrices_) {
      passes.push_back(this->Accumulation(matrix));
      passes.back().factor = Basis(matrix);
      passes.back().result = Sent(matrix);
    }
    sends_p_ ? PassOverRows(passes) : PassOverColumns(passes);
    for (const Matrix& matrix : this->matrices_) {
      LowRankTensor<T>& tensor = matrix.tensor;
      if (!tensor.keeps_error) continue;
      this->Guard(Sent(matrix), SentCount(tensor));
      AssignFactors(matrix, tensor.next.error_p, tensor.next.error_q);
    }
  }

  static void AssignFactors(const Matrix& matrix, std::vector<T>& p,
                            std::vector<T>& q) {
    p.assign(matrix.p, matrix.p + matrix.p_count());
    q.assign(matrix.q, matrix.q + matrix.q_count());
  }

  // Writes the averages, and declares the outcome staged.
  void Finish() {
    for (const Raw& raw : this->raws_) WriteSpan(raw.values, raw.gradient);
    std::vector<LowRankPass<T>> passes;
    passes.reserve(this->matrices_.size());
    for (const Matrix& matrix : this->matrices_) {
      passes.push_back(this->Reconstruction(matrix));
    }
    PassOverRows(passes);
    for (const Matrix& matrix : this->matrices_) {
      LowRankTensor<T>& tensor = matrix.tensor;
      AssignFactors(matrix, tensor.next.p, tensor.next.q);
      tensor.next.has_error = tensor.keeps_error;
      tensor.staged = true;
    }
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
