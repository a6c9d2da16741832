#include "hooks/low_rank/powersgd.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "hooks/kernels/low_rank.h"
#include "hooks/low_rank/device_powersgd.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_exchange.h"
#include "hooks/low_rank/low_rank_hook.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/low_rank/low_rank_tensor.h"
#include "hooks/narrow.h"

namespace coxswain {
namespace {

// The exchange of one bucket in a compressed step (formulas: powersgd.h).
// `tensors` are those of the bucket's gradients, in order. Always three calls
// of Advance; a bucket without matrices has nothing to send in the second.
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
    first_ = this->scratch_.template Take<T>(AsSize(first_count_));
    second_ = this->scratch_.template Take<T>(AsSize(second_count_));
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
    this->WriteAverages();
    for (const Matrix& matrix : this->matrices_) Stage(matrix);
  }

  void FinishRaw(const Raw& raw) {
    LowRankTensor<T>& tensor = raw.tensor;
    if (config_.pytorch) this->Average(raw.values, tensor.count);
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

class PowerSgdHook : public LowRankHook {
 public:
  PowerSgdHook(std::string spec, OptionValues options)
      : LowRankHook("powersgd", std::move(spec), std::move(options)) {}

 protected:
  int64_t RankOf(const ParameterSpec& parameter) const override {
    return LowRankOf(parameter.shape, config().rank,
                     config().min_compression_rate);
  }

  bool KeepsError(int64_t r) const override {
    return config().error_feedback && (r > 0 || config().pytorch);
  }

  std::unique_ptr<Exchange> Compress(const Bucket& bucket,
                                     Communicator& communicator,
                                     const LowRankStep& step) override {
    return bucket.data.dtype == DType::kFloat64
               ? CompressAs<double>(bucket, communicator, step)
               : CompressAs<float>(bucket, communicator, step);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> CompressOnDevice(
      const Bucket& bucket, Communicator& communicator,
      const LowRankStep& step) override {
    return bucket.data.dtype == DType::kFloat64
               ? device_.Prepare(bucket, TensorsOf<double>(bucket),
                                 communicator, step)
               : device_.Prepare(bucket, TensorsOf<float>(bucket), communicator,
                                 step);
  }

  absl::Status FetchFromDevice() const override { return device_.Fetch(); }
  void ForgetDevice() override { device_.Forget(); }

  void EndStep(bool commit) override {
    LowRankHook::EndStep(commit);
    device_.EndStep(commit);
  }

 private:
  template <typename T>
  std::unique_ptr<Exchange> CompressAs(const Bucket& bucket,
                                       Communicator& communicator,
                                       const LowRankStep& step) {
    return std::make_unique<PowerSgdExchange<T>>(bucket, TensorsOf<T>(bucket),
                                                 communicator, step);
  }

  DevicePowerSgd device_;
};

OptionDescription ModeOption() {
  return ChoiceOption(
      "mode", "local", {"local", "pytorch"},
      "local: each rank keeps what it left out itself; pytorch: "
      "the residual and order of operations of PyTorch");
}

CostCard PowerSgdCard() {
  CostCard card;
  card.bytes =
      "r (n + m) elements for each compressed n x m matrix, all elements of "
      "the rest; in the gradients' own type. A step that is not finite: 4 "
      "bytes "
      "a rank in place of Q";
  card.collectives = "2 all-reduces";
  card.memory =
      "8 bytes an element of the compressed matrices (gradient plus error, "
      "committed and staged; of all tensors with mode=pytorch), and "
      "2 r (n + 2 m) elements of factors; without error_feedback 2 r m "
      "elements "
      "only. In flight what is sent";
  card.numerics =
      "lossy; what a step leaves out is sent later. Computed in float32 "
      "(float64 for float64). Raw tensors are exact up to the rounding of "
      "sums. mode=pytorch divides after the sums, which overflow sooner. Where "
      "the members of a running job change from W to W', errors are multiplied "
      "by W'/W; mode=pytorch starts anew without errors";
  card.avoid =
      "models whose gradients are mostly vectors, networks faster than the "
      "arithmetic, and the first steps of a training (see start_step)";
  return card;
}

}  // namespace

HookRow PowerSgdRow() {
  HookRow row;
  row.description.name = "powersgd";
  row.description.aliases = {"powerSGD", "power_sgd"};
  row.description.help = "low-rank gradients with error feedback";
  row.description.options = {
      RankOption(1),
      StartStepOption(),
      MinCompressionRateOption(),
      ErrorFeedbackOption(),
      WarmStartOption(),
      DoubleOption("orthogonalization_epsilon", 0, 0, 1,
                   "added to the norms by gram_schmidt"),
      SeedOption(),
      StatsEveryOption(),
      BoolOption("batch_same_shape", false,
                 "accepted without effect: all matrices of a bucket are always "
                 "treated together",
                 {"batch_tensors_with_same_shape"}),
      ModeOption(),
      OrthogonalizeOption(),
  };
  row.description.card = PowerSgdCard();
  row.on_device = true;
  row.check = [](const OptionValues& options, bool) {
    return CheckMemory(options);
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return std::make_unique<PowerSgdHook>(std::move(spec), std::move(options));
  };
  return row;
}

}  // namespace coxswain
