#include "hooks/low_rank/acp_sgd.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "hooks/kernels/low_rank.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_exchange.h"
#include "hooks/low_rank/low_rank_hook.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/low_rank/low_rank_tensor.h"
#include "hooks/narrow.h"

namespace coxswain {
namespace {

// The exchange of one bucket in a compressed step (formulas: acp_sgd.h).
// `tensors` are those of the bucket's gradients, in order. Two calls of
// Advance, and a third in a step that is not finite, on all ranks alike.
//
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
    sent_ = this->scratch_.template Take<T>(AsSize(sent_count_));
    basis_ = this->scratch_.template Take<T>(AsSize(basis_count_));
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
  // does not hold of X is the error of this step, of which the factors are
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
    this->WriteAverages();
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

class AcpSgdHook : public LowRankHook {
 public:
  AcpSgdHook(std::string spec, OptionValues options)
      : LowRankHook("acp_sgd", std::move(spec), std::move(options)) {}

 protected:
  int64_t RankOf(const ParameterSpec& parameter) const override {
    return LowRankOf(parameter.shape, config().rank,
                     config().min_compression_rate);
  }

  bool KeepsError(int64_t r) const override {
    return config().error_feedback && r > 0;
  }

  std::unique_ptr<Exchange> Compress(const Bucket& bucket,
                                     Communicator& communicator,
                                     const LowRankStep& step) override {
    return bucket.data.dtype == DType::kFloat64
               ? CompressAs<double>(bucket, communicator, step)
               : CompressAs<float>(bucket, communicator, step);
  }

 private:
  template <typename T>
  std::unique_ptr<Exchange> CompressAs(const Bucket& bucket,
                                       Communicator& communicator,
                                       const LowRankStep& step) {
    return std::make_unique<AcpSgdExchange<T>>(bucket, TensorsOf<T>(bucket),
                                               communicator, step);
  }
};

CostCard AcpSgdCard() {
  CostCard card;
  card.bytes =
      "r n elements (odd steps) or r m (even steps) for each compressed n x m "
      "matrix, all elements of the rest; in the gradients' own type";
  card.collectives =
      "1 all-reduce; in a step that is not finite another, of 4 bytes a rank";
  card.memory =
      "8 bytes an element of the compressed matrices (gradient plus error, "
      "committed and staged), and 4 r (n + m) elements of factors; without "
      "error_feedback 2 r (n + m) only. In flight what is sent, and the other "
      "factor";
  card.numerics =
      "lossy, and more so than powersgd of the same rank, as a step improves "
      "one factor; what it leaves out is sent later. Computed in float32 "
      "(float64 for float64). Raw tensors are exact up to the rounding of sums";
  card.avoid =
      "as powersgd; and where gradients turn quickly, since a step can only "
      "say what fits the other factor, which is a step old";
  return card;
}

}  // namespace

HookRow AcpSgdRow() {
  HookRow row;
  row.description.name = "acp_sgd";
  row.description.aliases = {"acp"};
  row.description.help =
      "low-rank gradients, one factor and one all-reduce a step";
  row.description.options = {
      RankOption(4),         StartStepOption(), MinCompressionRateOption(),
      ErrorFeedbackOption(), SeedOption(),      StatsEveryOption(),
      OrthogonalizeOption(),
  };
  row.description.card = AcpSgdCard();
  row.check = [](const OptionValues& options, bool) {
    return CheckStartStep(options, {"the factors"});
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return std::make_unique<AcpSgdHook>(std::move(spec), std::move(options));
  };
  return row;
}

}  // namespace coxswain
