#include "hooks/low_rank/powersgd.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "hooks/allreduce.h"
#include "hooks/low_rank/powersgd_exchange.h"
#include "hooks/low_rank/powersgd_matrix.h"
#include "hooks/low_rank/powersgd_state.h"
#include "hooks/plain_hook.h"
#include "hooks/scratch.h"

namespace coxswain {
namespace {

PowerSgdConfig ConfigOf(const OptionValues& options) {
  PowerSgdConfig config;
  config.rank = options.Int("rank");
  config.start_step = options.Int("start_step");
  config.min_compression_rate = options.Double("min_compression_rate");
  config.error_feedback = options.Bool("error_feedback");
  config.warm_start = options.Bool("warm_start");
  config.epsilon = options.Double("orthogonalization_epsilon");
  config.seed = static_cast<uint64_t>(options.Int("seed"));
  return config;
}

class PowerSgdHook : public Hook {
 public:
  PowerSgdHook(std::string spec, OptionValues options)
      : spec_(std::move(spec)),
        options_(std::move(options)),
        config_(ConfigOf(options_)) {}

  std::string spec() const override { return spec_; }

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    if (world_size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("a world has at least 1 rank, got ", world_size));
    }
    std::set<std::string> names;
    for (const ParameterSpec& parameter : parameters) {
      if (!names.insert(parameter.name).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("two parameters are called '", parameter.name,
                         "'; a hook keeps its state by name"));
      }
    }
    AllLowRankMatrices kept;
    for (const ParameterSpec& parameter : parameters) {
      if (parameter.dtype == DType::kFloat64) {
        Adopt<double>(parameter, kept);
      } else {
        Adopt<float>(parameter, kept);
      }
    }
    matrices_ = std::move(kept);
    parameters_ = parameters;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucket(spec_, bucket));
    COXSWAIN_RETURN_IF_ERROR(CheckSlots(bucket));
    if (!started()) return PrepareAllReduce(bucket, communicator);
    if (bucket.data.dtype == DType::kFloat64) {
      return PrepareCompressed<double>(bucket, communicator);
    }
    return PrepareCompressed<float>(bucket, communicator);
  }

  absl::Status Commit() override {
    CommitAll(std::get<0>(matrices_));
    CommitAll(std::get<1>(matrices_));
    ++step_;
    return absl::OkStatus();
  }

  void Rollback() override {
    for (auto& [name, matrix] : std::get<0>(matrices_)) matrix.staged = false;
    for (auto& [name, matrix] : std::get<1>(matrices_)) matrix.staged = false;
  }

  int64_t step() const override { return step_; }
  bool started() const override { return step_ >= config_.start_step; }

  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    COXSWAIN_ASSIGN_OR_RETURN(
        HookState state, SavePowerSgdState(parameters_, matrices_,
                                           options_.Texts(), communicator));
    state.spec = spec_;
    state.step = step_;
    return state;
  }

  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override {
    COXSWAIN_RETURN_IF_ERROR(CheckStateName(spec_, state));
    COXSWAIN_ASSIGN_OR_RETURN(
        matrices_, LoadPowerSgdState(state, parameters_, matrices_,
                                     options_.Texts(), rank, world_size));
    step_ = state.step;
    return absl::OkStatus();
  }

 private:
  // Enters a parameter into `kept` if it is a matrix to compress, with what
  // is known about a parameter of that name and shape.
  template <typename T>
  void Adopt(const ParameterSpec& parameter, AllLowRankMatrices& kept) {
    const int64_t r = PowerSgdRank(parameter.shape, config_.rank,
                                   config_.min_compression_rate);
    if (r == 0) return;
    auto& known = std::get<LowRankMatrices<T>>(matrices_);
    LowRankMatrix<T>& matrix =
        std::get<LowRankMatrices<T>>(kept)[parameter.name];
    const auto found = known.find(parameter.name);
    if (found != known.end() && found->second.shape == parameter.shape) {
      matrix = std::move(found->second);
      matrix.staged = false;
      return;
    }
    matrix.name = parameter.name;
    matrix.shape = parameter.shape;
    matrix.n = parameter.shape[0];
    matrix.m = parameter.count() / matrix.n;
    matrix.r = r;
  }

  absl::Status CheckSlots(const Bucket& bucket) const {
    for (const GradientSlot& slot : bucket.gradients) {
      const bool known =
          slot.parameter >= 0 &&
          static_cast<size_t>(slot.parameter) < parameters_.size();
      if (!known) {
        return absl::InvalidArgumentError(absl::StrCat(
            "bucket ", bucket.index, " has a gradient of parameter ",
            slot.parameter, ", the hook was configured with ",
            parameters_.size(), " parameters"));
      }
      const ParameterSpec& parameter =
          parameters_[static_cast<size_t>(slot.parameter)];
      if (parameter.count() != slot.count ||
          parameter.dtype != bucket.data.dtype) {
        return absl::InvalidArgumentError(
            absl::StrCat("bucket ", bucket.index, " has ", slot.count, " x ",
                         NameOf(bucket.data.dtype), " for parameter '",
                         parameter.name, "', which has ", parameter.count(),
                         " x ", NameOf(parameter.dtype)));
      }
    }
    return absl::OkStatus();
  }

  template <typename T>
  std::unique_ptr<Exchange> PrepareCompressed(const Bucket& bucket,
                                              Communicator& communicator) {
    auto& matrices = std::get<LowRankMatrices<T>>(matrices_);
    std::vector<PowerSgdPart<T>> parts;
    for (const GradientSlot& slot : bucket.gradients) {
      const ParameterSpec& parameter =
          parameters_[static_cast<size_t>(slot.parameter)];
      const auto found = matrices.find(parameter.name);
      parts.push_back({bucket.Gradient(slot),
                       found == matrices.end() ? nullptr : &found->second});
    }
    return MakePowerSgdExchange(std::move(parts), communicator, config_, step_,
                                scratch_);
  }

  template <typename T>
  void CommitAll(LowRankMatrices<T>& matrices) {
    for (auto& [name, matrix] : matrices) {
      if (!std::exchange(matrix.staged, false)) continue;
      if (config_.error_feedback) matrix.error.swap(matrix.staged_error);
      if (config_.warm_start) matrix.q.swap(matrix.staged_q);
    }
  }

  const std::string spec_;
  const OptionValues options_;
  const PowerSgdConfig config_;
  std::vector<ParameterSpec> parameters_;
  AllLowRankMatrices matrices_;
  int64_t step_ = 0;
  ScratchPool scratch_;
};

}  // namespace

const std::vector<OptionDescription>& PowerSgdOptions() {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  static const auto* options = new std::vector<OptionDescription>{
      IntOption("rank", 1, 1, 1024,
                "columns of the factors; more is more exact and more bytes",
                {"matrix_approximation_rank"}),
      IntOption("start_step", 1000, 0, kMax,
                "steps of plain averages before compression starts",
                {"start_powerSGD_iter"}),
      DoubleOption("min_compression_rate", 2, 0, 1e6,
                   "compress a matrix only if that saves this factor"),
      BoolOption("error_feedback", true, "send later what a step leaves out",
                 {"use_error_feedback"}),
      BoolOption("warm_start", true, "go on from the last step's Q"),
      DoubleOption("orthogonalization_epsilon", 0, 0, 1,
                   "added to the norms in the orthogonalisation"),
      IntOption("seed", 0, 0, kMax, "seed of the first Q", {"random_seed"}),
  };
  return *options;
}

absl::Status CheckPowerSgdOptions(const OptionValues& options) {
  const bool remembers =
      options.Bool("error_feedback") || options.Bool("warm_start");
  if (!remembers || options.Int("start_step") >= 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "error_feedback and warm_start need start_step of at least 2, got ",
      options.Int("start_step"), ", as in PyTorch; or turn both off"));
}

HookRow PowerSgdRow() {
  HookRow row;
  row.description.name = "powersgd";
  row.description.aliases = {"powerSGD", "power_sgd"};
  row.description.help = "low-rank gradients with error feedback";
  row.description.options = PowerSgdOptions();
  row.check = [](const OptionValues& options, bool) {
    return CheckPowerSgdOptions(options);
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return MakePowerSgdHook(std::move(spec), std::move(options));
  };
  return row;
}

std::unique_ptr<Hook> MakePowerSgdHook(std::string spec, OptionValues options) {
  return std::make_unique<PowerSgdHook>(std::move(spec), std::move(options));
}

int64_t PowerSgdRank(const std::vector<int64_t>& shape, int64_t rank,
                     double min_compression_rate) {
  if (shape.size() < 2) return 0;
  const int64_t n = shape[0];
  int64_t m = 1;
  for (size_t i = 1; i < shape.size(); ++i) m *= shape[i];
  const int64_t r = std::min({n, m, rank});
  const double factors = static_cast<double>(n + m) * static_cast<double>(r);
  const double whole = static_cast<double>(n) * static_cast<double>(m);
  return factors * min_compression_rate < whole ? r : 0;
}

}  // namespace coxswain
