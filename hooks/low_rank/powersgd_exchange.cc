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
  using typename LowRankExchange<T>::Matrix;
  using typename LowRankExchange<T>::Raw;

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
    this->Place(tensors_, first_.get(), second_.get(), true);
    ReadyQ();
    for (const Raw& raw : this->raws_) TakeRaw(raw);
    TakeMatrices();
    if (!config_.pytorch) this->Average(first_.get(), first_count_);
    return this->Send(first_, first_count_);
  }

  // Puts orth(Q) of each matrix where it stands until X Q is computed.
  void ReadyQ() {
    std::vector<FirstFactor<T>> factors;
    for (const Matrix& matrix : this->matrices_) {
      const LowRankTensor<T>& tensor = matrix.tensor;
      StartFactor(tensor.now.q, matrix.q_count(), matrix.q);
      factors.push_back({{matrix.q, tensor.m, tensor.r},
                         FactorStream(tensor.name, this->step_.number)});
    }
    ReadyFactors(factors, config_);
  }

  void TakeRaw(const Raw& raw) {
    LowRankTensor<T>& tensor = raw.tensor;
    ReadSpan(raw.gradient, raw.values);
    if (!tensor.keeps_error) return;
    tensor.next.x.Allocate(tensor.count);
    T* x = tensor.next.x.data();
    const LowRankMemory<T>& before = tensor.error();
    const T* error = before.has_error ? before.x.data() : nullptr;
    for (int64_t j = 0; j < tensor.count; ++j) {
      if (error != nullptr) raw.values[j] += error[j];
      x[j] = raw.values[j];
    }
  }

  // X = gradient + error, and P = X Q.
  void TakeMatrices() {
    std::vector<LowRankPass<T>> passes;
    passes.reserve(this->matrices_.size());
    for (const Matrix& matrix : this->matrices_) {
      passes.push_back(this->Accumulation(matrix));
      passes.back().factor = matrix.q;
      passes.back().result = matrix.p;
    }
    PassOverRows(passes);
    for (const Matrix& matrix : this->matrices_) {
      if (matrix.tensor.keeps_error) this->Guard(matrix.p, matrix.p_count());
    }
  }

  // Sends each matrix's transpose(X) P.
  WorkPtr SendSecond() {
    if (!this->AllFinite(first_.get(), first_count_)) {
      poisoned_ = true;
      return this->SendReport();
    }
    std::vector<TallMatrix<T>> factors;
    for (const Matrix& matrix : this->matrices_) {
      factors.push_back({matrix.p, matrix.tensor.n, matrix.tensor.r});
    }
    OrthogonaliseFactors(factors, config_);
    Project();
    if (!config_.pytorch) this->Average(second_.get(), second_count_);
    return this->Send(second_, second_count_);
  }

  // Q = transpose(X) P. The error of the step is X - P transpose(Q), of which
  // the factors are noted.
  void Project() {
    std::vector<LowRankPass<T>> passes;
    passes.reserve(this->matrices_.size());
    for (const Matrix& matrix : this->matrices_) {
      passes.push_back(this->Projection(matrix));
    }
    PassOverColumns(passes);
    for (const Matrix& matrix : this->matrices_) {
      if (!matrix.tensor.keeps_error) continue;
      this->Guard(matrix.q, matrix.q_count());
      LowRankMemory<T>& next = matrix.tensor.next;
      next.error_p.assign(matrix.p, matrix.p + matrix.p_count());
      if (!config_.pytorch) AssignQ(matrix, next.error_q);
    }
  }

  static LowRankPass<T> Projection(const Matrix& matrix) {
    LowRankTensor<T>& tensor = matrix.tensor;
    LowRankPass<T> pass;
    if (tensor.keeps_error) {
      pass.gradient = tensor.next.x.data();
    } else {
      pass.gradient = matrix.gradient.data;
      pass.type = matrix.gradient.dtype;
    }
    pass.factor = matrix.p;
    pass.r = tensor.r;
    pass.result = matrix.q;
    pass.n = tensor.n;
    pass.m = tensor.m;
    return pass;
  }

  // Writes the averages, and declares the outcome staged.
  void Finish() {
    if (poisoned_ || !this->AllFinite(second_.get(), second_count_)) {
      if (!this->FinishPoisoned()) return;
      for (LowRankTensor<T>* tensor : tensors_) DropOverflow(*tensor);
      return;
    }
    if (config_.pytorch) this->Average(second_.get(), second_count_);
    for (const Raw& raw : this->raws_) FinishRaw(raw);
    std::vector<LowRankPass<T>> passes;
    passes.reserve(this->matrices_.size());
    for (const Matrix& matrix : this->matrices_) {
      passes.push_back(this->Reconstruction(matrix));
    }
    PassOverRows(passes);
    for (const Matrix& matrix : this->matrices_) Stage(matrix);
  }

  void FinishRaw(const Raw& raw) {
    LowRankTensor<T>& tensor = raw.tensor;
    if (config_.pytorch) this->Average(raw.values, tensor.count);
    WriteSpan(raw.values, raw.gradient);
    if (!tensor.keeps_error) return;
    T* x = tensor.next.x.data();
    for (int64_t j = 0; j < tensor.count; ++j) x[j] -= raw.values[j];
    tensor.next.has_error = true;
    tensor.staged = true;
  }

  void Stage(const Matrix& matrix) {
    LowRankTensor<T>& tensor = matrix.tensor;
    LowRankMemory<T>& next = tensor.next;
    if (config_.pytorch && tensor.keeps_error) AssignQ(matrix, next.error_q);
    next.q.clear();
    if (config_.warm_start) AssignQ(matrix, next.q);
    next.has_error = tensor.keeps_error;
    tensor.staged = true;
  }

  static void AssignQ(const Matrix& matrix, std::vector<T>& out) {
    out.assign(matrix.q, matrix.q + matrix.q_count());
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
