#include "hooks/low_rank/low_rank_hook.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "hooks/allreduce.h"
#include "hooks/device/device_exchange.h"
#include "hooks/parameter_state.h"
#include "hooks/plain_hook.h"

namespace coxswain {
namespace {

constexpr size_t kMaxLogged = 8;

bool Same(const ParameterSpec& a, const ParameterSpec& b) {
  return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype;
}

// A tensor without any memory of steps.
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

absl::StatusOr<std::unique_ptr<Exchange>> LowRankHook::Prepare(
    const Bucket& bucket, Communicator& communicator) {
  COXSWAIN_RETURN_IF_ERROR(CheckBucketType(spec_, bucket));
  COXSWAIN_RETURN_IF_ERROR(CheckSlots(bucket, parameters_));
  if (!std::exchange(open_, true)) report_ = LowRankReport();
  rank_ = communicator.rank();
  if (!started()) return PrepareAllReduce(bucket, communicator);
  return weighted_.Make(
      spec_, bucket, communicator,
      [this](const Bucket& weighted,
             Communicator& ranks) -> absl::StatusOr<std::unique_ptr<Exchange>> {
        const LowRankStep step{config_, parameters_, scratch_, report_, step_};
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

}  // namespace coxswain
