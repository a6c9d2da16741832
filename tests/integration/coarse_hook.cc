#include "tests/integration/coarse_hook.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"

namespace coxswain {
namespace {

class CoarseExchange : public Exchange {
 public:
  CoarseExchange(const Bucket& bucket, Communicator* communicator,
                 int world_size)
      : bucket_(bucket), communicator_(*communicator), world_(world_size) {}

  absl::StatusOr<WorkPtr> Advance() override {
    if (!std::exchange(started_, true)) {
      return communicator_.AllReduce(bucket_.data);
    }
    auto* const values = static_cast<double*>(bucket_.data.data);
    for (int64_t i = 0; i < bucket_.data.count; ++i) values[i] /= world_;
    return WorkPtr();
  }

 private:
  const Bucket bucket_;
  Communicator& communicator_;
  const int world_;
  bool started_ = false;
};

}  // namespace

absl::Status CoarseHook::Configure(const std::vector<ParameterSpec>& parameters,
                                   int world_size) {
  parameters_ = parameters;
  world_size_ = world_size;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Exchange>> CoarseHook::Prepare(
    const Bucket& bucket, Communicator& communicator) {
  COXSWAIN_CHECK(bucket.data.dtype == DType::kFloat64);
  for (const GradientSlot& slot : bucket.gradients) {
    const std::string& name =
        parameters_[static_cast<size_t>(slot.parameter)].name;
    auto* const values = static_cast<double*>(bucket.Gradient(slot).data);
    const std::vector<double>& before = errors_[name];
    std::vector<double> left(static_cast<size_t>(slot.count));
    for (size_t i = 0; i < left.size(); ++i) {
      if (!before.empty()) values[i] += before[i];
      const double sent = std::floor(values[i] / kUnit) * kUnit;
      left[i] = values[i] - sent;
      values[i] = sent;
    }
    staged_[name] = std::move(left);
  }
  return std::make_unique<CoarseExchange>(bucket, &communicator, world_size_);
}

absl::Status CoarseHook::Commit() {
  for (auto& [name, error] : staged_) errors_[name] = std::move(error);
  staged_.clear();
  ++step_;
  return absl::OkStatus();
}

absl::StatusOr<HookState> CoarseHook::SaveOwn() const {
  HookState state;
  state.spec = spec();
  state.step = step_;
  for (const auto& [name, error] : errors_) {
    StateTensor tensor;
    tensor.kind = "own_error";
    tensor.parameter = name;
    tensor.dtype = DType::kFloat64;
    tensor.shape = {static_cast<int64_t>(error.size())};
    tensor.data.assign(reinterpret_cast<const char*>(error.data()),
                       error.size() * sizeof(double));
    state.tensors.push_back(std::move(tensor));
  }
  return state;
}

absl::Status CoarseHook::LoadOwn(const HookState& state, double error_scale) {
  errors_.clear();
  for (const StateTensor& tensor : state.tensors) {
    std::vector<double>& error = errors_[tensor.parameter];
    error.resize(tensor.data.size() / sizeof(double));
    std::memcpy(error.data(), tensor.data.data(), tensor.data.size());
    for (double& value : error) value *= error_scale;
  }
  step_ = state.step;
  return absl::OkStatus();
}

double CoarseHook::ErrorNorm() const {
  double sum = 0;
  for (const auto& [name, error] : errors_) {
    for (const double value : error) sum += value * value;
  }
  return std::sqrt(sum);
}

absl::StatusOr<HookState> CoarseHook::SaveState(Communicator&) {
  return absl::UnimplementedError("a hook for tests");
}

absl::Status CoarseHook::LoadState(const HookState&, int, int) {
  return absl::UnimplementedError("a hook for tests");
}

std::vector<double> CoarseErrors(const HookState& state) {
  std::vector<double> errors;
  for (const StateTensor& tensor : state.tensors) {
    const size_t begin = errors.size();
    errors.resize(begin + tensor.data.size() / sizeof(double));
    std::memcpy(errors.data() + begin, tensor.data.data(), tensor.data.size());
  }
  return errors;
}

}  // namespace coxswain
