#include "hooks/low_rank/batched_powersgd.h"

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
#include "hooks/low_rank/batched_powersgd_exchange.h"
#include "hooks/low_rank/bucket_matrices.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_hook.h"
#include "hooks/low_rank/own_state.h"
#include "hooks/parameter_state.h"

namespace coxswain {
namespace {

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
    return MakeBatchedPowerSgdExchange(bucket, matrix, communicator, step);
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

CostCard Card() {
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
  row.description.card = Card();
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
