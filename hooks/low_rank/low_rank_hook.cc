#include "hooks/low_rank/low_rank_hook.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "hooks/allreduce.h"
#include "hooks/device/device_exchange.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/parameter_state.h"
#include "hooks/plain_hook.h"

namespace coxswain {
namespace {

constexpr size_t kMaxLogged = 8;

bool Same(const ParameterSpec& a, const ParameterSpec& b) {
  return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype;
}

// Returns a tensor without any memory of steps.
template <typename T>
std::unique_ptr<LowRankTensor<T>> NewTensor(const ParameterSpec& parameter,
                                            int64_t r) {
  auto tensor = std::make_unique<LowRankTensor<T>>();
  tensor->name = parameter.name;
  tensor->shape = parameter.shape;
  tensor->n = r > 0 ? parameter.shape[0] : parameter.count();
  tensor->m = r > 0 ? parameter.count() / tensor->n : 1;
  tensor->r = r;
  tensor->count = parameter.count();
  return tensor;
}

}  // namespace

LowRankHook::LowRankHook(std::string name, std::string spec,
                         OptionValues options)
    : name_(std::move(name)),
      spec_(std::move(spec)),
      options_(std::move(options)),
      config_(LowRankConfigOf(options_)) {}

LowRankHook::Tensor LowRankHook::MakeTensor(
    const ParameterSpec& parameter) const {
  const int64_t r = RankOf(parameter);
  const auto finish = [&](auto tensor) -> Tensor {
    tensor->keeps_error = KeepsError(r) && parameter.count() > 0;
    return tensor;
  };
  return parameter.dtype == DType::kFloat64
             ? finish(NewTensor<double>(parameter, r))
             : finish(NewTensor<float>(parameter, r));
}

absl::Status LowRankHook::Configure(
    const std::vector<ParameterSpec>& parameters, int world_size) {
  COXSWAIN_RETURN_IF_ERROR(CheckParameters(parameters, world_size));
  const bool same = std::equal(parameters.begin(), parameters.end(),
                               parameters_.begin(), parameters_.end(), Same);
  COXSWAIN_RETURN_IF_ERROR(LeaveDevice());
  weighted_.Clear();
  if (same) return absl::OkStatus();
  BeforeOtherParameters();
  Tensors kept;
  for (const ParameterSpec& parameter : parameters) {
    const int index = IndexOf(parameter.name);
    const bool known =
        index >= 0 && Same(parameters_[static_cast<size_t>(index)], parameter);
    kept.push_back(known ? std::move(tensors_[static_cast<size_t>(index)])
                         : MakeTensor(parameter));
  }
  tensors_ = std::move(kept);
  parameters_ = parameters;
  indices_.clear();
  for (const ParameterSpec& parameter : parameters_) {
    indices_.emplace(parameter.name, static_cast<int>(indices_.size()));
  }
  return absl::OkStatus();
}

int LowRankHook::IndexOf(const std::string& name) const {
  const auto found = indices_.find(name);
  return found == indices_.end() ? -1 : found->second;
}

absl::Status LowRankHook::Begin(const Bucket& bucket,
                                const Communicator& communicator) {
  COXSWAIN_RETURN_IF_ERROR(CheckBucketType(spec_, bucket));
  COXSWAIN_RETURN_IF_ERROR(CheckSlots(bucket, parameters_));
  if (!std::exchange(open_, true)) report_ = LowRankReport();
  rank_ = communicator.rank();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Exchange>> LowRankHook::Prepare(
    const Bucket& bucket, Communicator& communicator) {
  COXSWAIN_RETURN_IF_ERROR(Begin(bucket, communicator));
  if (!started()) return PrepareAllReduce(bucket, communicator);
  return PrepareCompressed(bucket, std::nullopt, communicator);
}

absl::StatusOr<std::unique_ptr<Exchange>> LowRankHook::PrepareSlice(
    const Bucket& bucket, const BucketSlices& slices,
    Communicator& communicator) {
  COXSWAIN_RETURN_IF_ERROR(Begin(bucket, communicator));
  if (!started()) return PrepareReduceScatter(bucket, slices, communicator);
  return PrepareCompressed(bucket, slices, communicator);
}

absl::StatusOr<std::unique_ptr<Exchange>> LowRankHook::PrepareCompressed(
    const Bucket& bucket, std::optional<BucketSlices> slices,
    Communicator& communicator) {
  return weighted_.Make(
      spec_, bucket, communicator,
      [this, slices](const Bucket& weighted, Communicator& ranks)
          -> absl::StatusOr<std::unique_ptr<Exchange>> {
        const LowRankStep step{config_, parameters_, scratch_,
                               report_, step_,       slices};
        if (IsOnDevice(weighted)) {
          return CompressOnDevice(weighted, ranks, step);
        }
        COXSWAIN_RETURN_IF_ERROR(LeaveDevice());
        return Compress(weighted, ranks, step);
      });
}

absl::StatusOr<std::unique_ptr<Exchange>> LowRankHook::CompressOnDevice(
    const Bucket& bucket, Communicator&, const LowRankStep&) {
  return CheckBucket(spec_, bucket);
}

absl::Status LowRankHook::LeaveDevice() {
  COXSWAIN_RETURN_IF_ERROR(FetchFromDevice());
  ForgetDevice();
  return absl::OkStatus();
}

absl::Status LowRankHook::Commit() {
  if (open_ && started()) {
    ++compressed_steps_;
    elements_ += report_.elements;
    sent_ += report_.sent;
    if (compressed_steps_ % config_.stats_every == 0) LogSavings();
  }
  EndStep(/*commit=*/true);
  LogPoisoned();
  open_ = false;
  ++step_;
  return absl::OkStatus();
}

void LowRankHook::Rollback() {
  EndStep(/*commit=*/false);
  LogPoisoned();
  open_ = false;
}

void LowRankHook::EndStep(bool commit) {
  for (Tensor& any : tensors_) {
    std::visit([&](auto& tensor) { EndStepOf(*tensor, commit); }, any);
  }
}

// All ranks know the same; one line is enough.
void LowRankHook::LogPoisoned() const {
  if (!open_ || !report_.poisoned || rank_ != 0) return;
  std::vector<std::string> culprits;
  for (const NonFiniteGradient& gradient : report_.non_finite) {
    if (culprits.size() == kMaxLogged) {
      culprits.push_back("and more");
      break;
    }
    culprits.push_back(
        absl::StrCat("rank ", gradient.rank, ": ", gradient.parameter));
  }
  if (culprits.empty()) culprits.push_back("none; a sum overflowed");
  LogWarning("gradients_not_finite",
             {{"hook", name_},
              {"step", step_},
              {"gradients", absl::StrJoin(culprits, ", ")}});
}

void LowRankHook::LogSavings() {
  if (rank_ != 0) return;
  const double ratio =
      sent_ > 0 ? static_cast<double>(elements_) / static_cast<double>(sent_)
                : 1.0;
  LogInfo("compression", {{"hook", name_},
                          {"compressed_steps", compressed_steps_},
                          {"elements", elements_},
                          {"elements_sent", sent_},
                          {"ratio", ratio}});
}

std::variant<ErrorView<float>, ErrorView<double>> LowRankHook::ErrorOf(
    size_t parameter) const {
  using View = std::variant<ErrorView<float>, ErrorView<double>>;
  return std::visit(
      [](const auto& tensor) -> View { return ErrorViewOf(*tensor); },
      tensors_[parameter]);
}

std::vector<ErrorSource> LowRankHook::ErrorSources() const {
  std::vector<ErrorSource> sources;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const bool keeps = std::visit(
        [](const auto& tensor) { return tensor->keeps_error; }, tensors_[i]);
    if (keeps) sources.push_back({&parameters_[i], ErrorOf(i)});
  }
  return sources;
}

void LowRankHook::SaveFactors(HookState& state) const {
  for (const Tensor& any : tensors_) {
    std::visit(
        [&](const auto& tensor) {
          const auto& now = tensor->now;
          if (!now.p.empty()) {
            state.tensors.push_back(MakeStateTensor(
                "p", tensor->name, {tensor->r, tensor->n}, now.p));
          }
          if (!now.q.empty()) {
            state.tensors.push_back(MakeStateTensor(
                "q", tensor->name, {tensor->r, tensor->m}, now.q));
          }
        },
        any);
  }
}

absl::StatusOr<HookState> LowRankHook::SaveState(Communicator& communicator) {
  COXSWAIN_RETURN_IF_ERROR(FetchFromDevice());
  HookState state;
  state.spec = spec_;
  state.step = step_;
  if (communicator.rank() == 0) {
    state.options = options_.Texts();
    state.options["parameters"] = ParameterLines(parameters_);
    SaveFactors(state);
  }
  COXSWAIN_RETURN_IF_ERROR(SaveErrors(ErrorSources(), communicator, state));
  return state;
}

absl::Status LowRankHook::LoadFactor(const StateTensor& saved,
                                     Tensors& tensors) {
  const int index = IndexOf(saved.parameter);
  return std::visit(
      [&](auto& tensor) -> absl::Status {
        auto& now = tensor->now;
        const bool is_p = saved.kind == "p";
        if (tensor->raw() || (!is_p && saved.kind != "q")) {
          return UnfitTensor(name_, saved, "is of an unknown kind");
        }
        const int64_t extent = is_p ? tensor->n : tensor->m;
        using T = std::decay_t<decltype(*now.x.data())>;
        COXSWAIN_ASSIGN_OR_RETURN(
            (is_p ? now.p : now.q),
            ReadTensor<T>(name_, saved, {tensor->r, extent}));
        return absl::OkStatus();
      },
      tensors[static_cast<size_t>(index)]);
}

// `share` is what this rank's error is of the mean: 0, or the world size.
absl::Status LowRankHook::LoadError(const StateTensor& saved, int share,
                                    Tensors& tensors) {
  const int index = IndexOf(saved.parameter);
  return std::visit(
      [&](auto& tensor) -> absl::Status {
        using T = std::decay_t<decltype(*tensor->now.x.data())>;
        COXSWAIN_ASSIGN_OR_RETURN(const std::vector<T> mean,
                                  ReadTensor<T>(name_, saved, tensor->shape));
        if (share == 0) return absl::OkStatus();
        tensor->now.x.Allocate(tensor->count);
        std::transform(
            mean.begin(), mean.end(), tensor->now.x.data(),
            [share](T value) { return value * static_cast<T>(share); });
        tensor->now.has_error = true;
        return absl::OkStatus();
      },
      tensors[static_cast<size_t>(index)]);
}

std::map<std::string, int> LowRankHook::Owners(int world_size) const {
  std::map<std::string, int> owners;
  for (const ErrorSource& source : ErrorSources()) {
    const std::string& parameter = source.parameter->name;
    owners[parameter] = static_cast<int>(StableHash(parameter) %
                                         static_cast<uint64_t>(world_size));
  }
  return owners;
}

absl::Status LowRankHook::LoadState(const HookState& state, int rank,
                                    int world_size) {
  const std::map<std::string, int> owners = Owners(world_size);
  return Load(state, [&](const StateTensor& tensor, Tensors& loaded) {
    if (tensor.kind != kErrorKind) return LoadFactor(tensor, loaded);
    const auto owner = owners.find(tensor.parameter);
    if (owner == owners.end()) {
      return UnfitTensor(name_, tensor, "belongs to no compressed parameter");
    }
    const int share = owner->second == rank ? world_size : 0;
    return LoadError(tensor, share, loaded);
  });
}

absl::Status LowRankHook::Load(const HookState& state, const Take& take) {
  COXSWAIN_RETURN_IF_ERROR(CheckStateName(spec_, state));
  COXSWAIN_RETURN_IF_ERROR(CheckStateFits(
      name_, state, parameters_, options_.Texts(), OptionsThatMayChange()));
  BeforeLoading();
  Tensors loaded;
  for (const ParameterSpec& parameter : parameters_) {
    loaded.push_back(MakeTensor(parameter));
  }
  std::set<std::pair<std::string, std::string>> seen;
  for (const StateTensor& tensor : state.tensors) {
    if (!seen.insert({tensor.kind, tensor.parameter}).second) {
      return UnfitTensor(name_, tensor, "is there twice");
    }
    if (tensor.kind != kOwnBucketError && IndexOf(tensor.parameter) < 0) {
      return UnfitTensor(name_, tensor, "belongs to no parameter");
    }
    COXSWAIN_RETURN_IF_ERROR(take(tensor, loaded));
  }
  ForgetDevice();
  tensors_ = std::move(loaded);
  step_ = state.step;
  AfterLoading(state);
  return absl::OkStatus();
}

void LowRankHook::SaveOwnErrors(HookState& state) const {
  for (const Tensor& any : tensors_) {
    std::visit(
        [&state](const auto& tensor) {
          if (!tensor->now.has_error) return;
          state.tensors.push_back(MakeOwnError(kOwnError, *tensor));
        },
        any);
  }
}

absl::Status LowRankHook::LoadOwnError(const StateTensor& saved, double scale,
                                       Tensors& tensors) {
  const int index = IndexOf(saved.parameter);
  if (index < 0) return UnfitTensor(name_, saved, "belongs to no parameter");
  return std::visit(
      [&](auto& tensor) { return TakeOwnError(name_, saved, scale, *tensor); },
      tensors[static_cast<size_t>(index)]);
}

absl::StatusOr<HookState> LowRankHook::SaveOwn() const {
  COXSWAIN_RETURN_IF_ERROR(FetchFromDevice());
  HookState state;
  state.spec = spec_;
  state.step = step_;
  state.options = options_.Texts();
  state.options["parameters"] = ParameterLines(parameters_);
  SaveFactors(state);
  SaveOwnErrors(state);
  return state;
}

absl::Status LowRankHook::LoadOwn(const HookState& state, double error_scale) {
  COXSWAIN_RETURN_IF_ERROR(CheckErrorScale(name_, error_scale));
  // Of residuals that are each rank's own distance from the mean, those of
  // some of the ranks mean nothing.
  const bool reset = config_.pytorch && error_scale != 1;
  const double scale = reset ? 0 : error_scale;
  return Load(state, [&](const StateTensor& tensor, Tensors& loaded) {
    if (tensor.kind == kOwnError || tensor.kind == kOwnBucketError) {
      return LoadOwnError(tensor, scale, loaded);
    }
    return LoadFactor(tensor, loaded);
  });
}

double LowRankHook::ErrorNorm() const {
  const absl::Status fetched = FetchFromDevice();
  if (fetched.ok()) return NormOf(ErrorSources());
  LogWarning("error_norm_unknown",
             {{"hook", name_}, {"reason", fetched.message()}});
  return std::nan("");
}

}  // namespace coxswain
