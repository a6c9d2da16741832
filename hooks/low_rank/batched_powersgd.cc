#include "hooks/low_rank/batched_powersgd.h"

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/kernels/low_rank.h"
#include "hooks/low_rank/bucket_matrices.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_exchange.h"
#include "hooks/low_rank/low_rank_hook.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/low_rank/low_rank_tensor.h"
#include "hooks/parameter_state.h"

namespace coxswain {
namespace {

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

// The exchange of one bucket in a compressed step (formulas:
// batched_powersgd.h). `matrix` is that of the bucket; its x has no more
// elements than the bucket. Always three calls of Advance.
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
    p_ = this->scratch_.template Take<T>(AsSize(n_ * r_));
    q_ = this->scratch_.template Take<T>(AsSize(m_ * r_));
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
      part.p.resize(AsSize(part.n * r_));
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
      const auto rows = this->KeptRows(part.offset, part.n, part.m);
      if (rows.count == 0) continue;
      // The part is not needed any more but for these.
      part.offset += rows.begin * part.m;
      part.row += rows.begin;
      part.n = rows.count;
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

// The tensors of parameters hold only errors that are in no bucket's matrix.
class BatchedPowerSgdHook : public LowRankHook {
 public:
  BatchedPowerSgdHook(std::string spec, OptionValues options)
      : LowRankHook("batched_powersgd", std::move(spec), std::move(options)) {}

 protected:
  int64_t RankOf(const ParameterSpec&) const override { return 0; }
  bool KeepsError(int64_t) const override { return config().error_feedback; }

  std::unique_ptr<Exchange> Compress(const Bucket& bucket,
                                     Communicator& communicator,
                                     const LowRankStep& step) override {
    return bucket.data.dtype == DType::kFloat64
               ? CompressAs<double>(bucket, communicator, step)
               : CompressAs<float>(bucket, communicator, step);
  }

  std::variant<ErrorView<float>, ErrorView<double>> ErrorOf(
      size_t parameter) const override {
    const int number = static_cast<int>(parameter);
    if (parameters()[parameter].dtype == DType::kFloat64) {
      ErrorView<double> view;
      if (std::get<1>(matrices_).Find(number, &view)) return view;
    } else {
      ErrorView<float> view;
      if (std::get<0>(matrices_).Find(number, &view)) return view;
    }
    return LowRankHook::ErrorOf(parameter);
  }

  void EndStep(bool commit) override {
    std::get<0>(matrices_).EndStep(commit);
    std::get<1>(matrices_).EndStep(commit);
    // What no bucket of a compressed step has taken is of other buckets.
    const bool compressed =
        !std::get<0>(matrices_).empty() || !std::get<1>(matrices_).empty();
    if (commit && compressed) DropLoaded();
  }

  void SaveFactors(HookState& state) const override {
    std::get<0>(matrices_).SaveFactors(state);
    std::get<1>(matrices_).SaveFactors(state);
    // Those of buckets that have not been exchanged since.
    state.tensors.insert(state.tensors.end(), loaded_.begin(), loaded_.end());
  }

  absl::Status LoadFactor(const StateTensor& saved, Tensors& tensors) override {
    if (!absl::StartsWith(saved.kind, kBucketFactor)) {
      return UnfitTensor(name(), saved, "is of an unknown kind");
    }
    const auto read = [&](const auto& tensor) -> absl::Status {
      using T = std::decay_t<decltype(*tensor->now.x.data())>;
      return ReadTensor<T>(name(), saved, saved.shape).status();
    };
    return std::visit(read,
                      tensors[static_cast<size_t>(IndexOf(saved.parameter))]);
  }

  void SaveOwnErrors(HookState& state) const override {
    LowRankHook::SaveOwnErrors(state);
    std::get<0>(matrices_).SaveOwn(state);
    std::get<1>(matrices_).SaveOwn(state);
  }

  absl::Status LoadOwnError(const StateTensor& saved, double scale,
                            Tensors& tensors) override {
    if (saved.kind == kOwnError) {
      return LowRankHook::LoadOwnError(saved, scale, tensors);
    }
    std::vector<int> numbers;
    for (absl::string_view parameter :
         absl::StrSplit(saved.parameter, '\n', absl::SkipEmpty())) {
      numbers.push_back(IndexOf(std::string(parameter)));
      if (numbers.back() < 0) {
        return UnfitTensor(name(), saved, "belongs to no parameter");
      }
    }
    return saved.dtype == DType::kFloat64
               ? LoadBucket<double>(saved, numbers, scale, tensors)
               : LoadBucket<float>(saved, numbers, scale, tensors);
  }

  void BeforeOtherParameters() override {
    std::get<0>(matrices_).Dissolve(Pointers<float>());
    std::get<1>(matrices_).Dissolve(Pointers<double>());
    loaded_.clear();
  }

  void BeforeLoading() override { loading_ = {}; }

  void AfterLoading(const HookState& state) override {
    matrices_ = std::exchange(loading_, {});
    loaded_.clear();
    for (const StateTensor& tensor : state.tensors) {
      if (absl::StartsWith(tensor.kind, kBucketFactor)) {
        loaded_.push_back(tensor);
      }
    }
  }

 private:
  void DropLoaded() {
    if (loaded_.empty()) return;
    LogWarning("factors_of_other_buckets",
               {{"hook", name()},
                {"factors_dropped", loaded_.size()},
                {"effect",
                 "approximate: the saved state is of other buckets; nothing is "
                 "lost, but the first steps compress worse than those of an "
                 "uninterrupted run"}});
    loaded_.clear();
  }

  template <typename T>
  std::unique_ptr<Exchange> CompressAs(const Bucket& bucket,
                                       Communicator& communicator,
                                       const LowRankStep& step) {
    LowRankTensor<T>& matrix = std::get<BucketMatrices<T>>(matrices_).For(
        bucket, config().rank, config().error_feedback, Pointers<T>(), loaded_);
    return std::make_unique<BatchedPowerSgdExchange<T>>(bucket, matrix,
                                                        communicator, step);
  }

  template <typename T>
  absl::Status LoadBucket(const StateTensor& saved,
                          const std::vector<int>& numbers, double scale,
                          Tensors& loaded) {
    const std::vector<LowRankTensor<T>*> pointers = PointersTo<T>(loaded);
    for (const int number : numbers) {
      if (pointers[static_cast<size_t>(number)] != nullptr) continue;
      return UnfitTensor(name(), saved, "has parameters of several types");
    }
    return std::get<BucketMatrices<T>>(loading_).LoadOwn(
        name(), saved, numbers, config().rank, config().error_feedback, scale,
        pointers);
  }

  template <typename T>
  std::vector<LowRankTensor<T>*> Pointers() {
    return PointersTo<T>(tensors());
  }

  // By registration index; null where the type is another.
  template <typename T>
  static std::vector<LowRankTensor<T>*> PointersTo(Tensors& tensors) {
    std::vector<LowRankTensor<T>*> pointers;
    for (Tensor& any : tensors) {
      auto* tensor = std::get_if<std::unique_ptr<LowRankTensor<T>>>(&any);
      pointers.push_back(tensor ? tensor->get() : nullptr);
    }
    return pointers;
  }

  using Matrices = std::tuple<BucketMatrices<float>, BucketMatrices<double>>;

  Matrices matrices_;
  Matrices loading_;                 // of a state that is being loaded
  std::vector<StateTensor> loaded_;  // Q of buckets that are yet to come
};

CostCard BatchedPowerSgdCard() {
  CostCard card;
  card.bytes =
      "r (n + m) elements for a bucket, m = ceil(sqrt(N)), n = ceil(N / m): "
      "about 2 r sqrt(N); in the gradients' own type. A step that is not "
      "finite: 4 bytes a rank in place of Q";
  card.collectives = "2 all-reduces";
  card.memory =
      "8 bytes an element (gradient plus error, committed and staged), and "
      "2 r (n + 2 m) elements of factors; without error_feedback 2 r m "
      "elements only. In flight what is sent";
  card.numerics =
      "very lossy: rows of the matrix are no rows of any parameter, and "
      "vectors are compressed too; what a step leaves out is sent later. A "
      "restart with other buckets goes on approximately only: the error "
      "stays, Q is drawn anew";
  card.avoid =
      "never a default: usually of lower accuracy than powersgd. Try it only "
      "where rank 1 is enough and bytes are what limits you";
  return card;
}

}  // namespace

HookRow BatchedPowerSgdRow() {
  HookRow row;
  row.description.name = "batched_powersgd";
  row.description.aliases = {"batched_power_sgd", "batched_powerSGD"};
  row.description.help = "PowerSGD of each bucket as one matrix; not a default";
  row.description.options = {
      RankOption(1),         StartStepOption(), ErrorFeedbackOption(),
      WarmStartOption(),     SeedOption(),      StatsEveryOption(),
      OrthogonalizeOption(),
  };
  row.description.card = BatchedPowerSgdCard();
  row.check = [](const OptionValues& options, bool) {
    return CheckMemory(options);
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return std::make_unique<BatchedPowerSgdHook>(std::move(spec),
                                                 std::move(options));
  };
  return row;
}

}  // namespace coxswain
