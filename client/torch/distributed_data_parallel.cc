#include "client/torch/distributed_data_parallel.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <exception>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

std::vector<NamedTensor> TrainableParameters(
    const ::torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const Tensor& tensor = item.value();
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    result.push_back({item.key(), tensor});
  }
  return result;
}

std::optional<DType> ToDType(::torch::ScalarType type) {
  switch (type) {
    case ::torch::kFloat32:
      return DType::kFloat32;
    case ::torch::kFloat64:
      return DType::kFloat64;
    case ::torch::kFloat16:
      return DType::kFloat16;
    case ::torch::kBFloat16:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

::torch::ScalarType FromDType(DType dtype) {
  for (const auto type :
       {::torch::kFloat64, ::torch::kFloat16, ::torch::kBFloat16}) {
    if (ToDType(type) == dtype) return type;
  }
  return ::torch::kFloat32;
}

Device ToDevice(const ::torch::Device& device) {
  Device result;
  if (!device.is_cpu()) result.kind = Device::Kind::kCuda;
  if (device.has_index() && !device.is_cpu()) result.index = device.index();
  return result;
}

absl::StatusOr<ParameterSpec> Describe(const NamedTensor& parameter) {
  const Tensor& tensor = parameter.tensor;
  const std::optional<DType> dtype = ToDType(tensor.scalar_type());
  if (!dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter \"", parameter.name, "\" is of type ",
        ::torch::toString(tensor.scalar_type()),
        "; float32, float64, float16 and bfloat16 can be averaged"));
  }
  ParameterSpec spec;
  spec.name = parameter.name;
  spec.shape = tensor.sizes().vec();
  spec.dtype = *dtype;
  spec.device = ToDevice(tensor.device());
  return spec;
}

// Any dense tensor of the host, as bytes.
Span BytesOf(const Tensor& tensor) {
  Span span;
  span.data = tensor.data_ptr();
  span.count = static_cast<int64_t>(tensor.nbytes());
  span.dtype = DType::kUInt8;
  span.device = ToDevice(tensor.device());
  return span;
}

// The door to libtorch: what it throws becomes a status.
template <typename Action>
absl::Status Guarded(absl::string_view what, Action action) {
  try {
    action();
    return absl::OkStatus();
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat(what, ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  }
}

}  // namespace

absl::StatusOr<std::vector<ParameterSpec>> DescribeParameters(
    const ::torch::nn::Module& module) {
  std::vector<ParameterSpec> specs;
  for (const NamedTensor& parameter : TrainableParameters(module)) {
    COXSWAIN_ASSIGN_OR_RETURN(ParameterSpec spec, Describe(parameter));
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::StatusOr<std::unique_ptr<DistributedDataParallel>>
DistributedDataParallel::Create(std::shared_ptr<::torch::nn::Module> module,
                                Communicator* communicator,
                                std::unique_ptr<Hook> hook,
                                const DistributedDataParallelOptions& options,
                                std::unique_ptr<Averager> averager) {
  if (hook->needs_averager() && averager == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the hook ", hook->spec(),
        " leaves the ranks' parameters apart and needs its averager: pass what "
        "MakePlannedAverager or MakeAverager gives for the same spec, and call "
        "AfterOptimizerStep after each optimizer step"));
  }
  if (hook->needs_averager() &&
      !absl::StrContains(hook->spec(), averager->spec())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the averager ", averager->spec(),
                     " is not that of the "
                     "hook ",
                     hook->spec(), "; make both from one spec"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(Accumulator accumulator,
                            Accumulator::Create(options.accumulation_steps));
  std::unique_ptr<DistributedDataParallel> ddp(new DistributedDataParallel(
      std::move(module), std::move(hook), std::move(averager),
      std::move(accumulator), options));
  COXSWAIN_RETURN_IF_ERROR(ddp->Connect(communicator));
  return ddp;
}

DistributedDataParallel::DistributedDataParallel(
    std::shared_ptr<::torch::nn::Module> module, std::unique_ptr<Hook> hook,
    std::unique_ptr<Averager> averager, Accumulator accumulator,
    const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      options_(options),
      hook_(std::move(hook)),
      averager_(std::move(averager)),
      accumulator_(std::move(accumulator)) {}

DistributedDataParallel::~DistributedDataParallel() {
  for (Parameter& parameter : parameters_) {
    if (parameter.hook_key != 0) {
      parameter.accumulate_grad->del_post_hook(parameter.hook_key);
    }
    // The memory of the views ends with the reducer.
    Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined() && gradient.is_alias_of(parameter.view)) {
      (void)Guarded("giving the gradients back",
                    [&] { gradient = gradient.detach().clone(); });
    }
  }
}

absl::Status DistributedDataParallel::Connect(Communicator* communicator) {
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> specs,
                            DescribeParameters(*module_));
  COXSWAIN_ASSIGN_OR_RETURN(
      reducer_, Reducer::Create(options_.reducer, std::move(specs), hook_.get(),
                                communicator));
  COXSWAIN_RETURN_IF_ERROR(BroadcastModule());
  COXSWAIN_RETURN_IF_ERROR(
      Guarded("registering with autograd", [this] { RegisterHooks(); }));
  if (averager_ == nullptr) return absl::OkStatus();
  return WithValues([&](const std::vector<Span>& values) {
    return averager_->Configure(reducer_->parameters(), values, *communicator);
  });
}

absl::Status DistributedDataParallel::AfterOptimizerStep() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  averager_due_ = false;
  if (averager_ == nullptr) return absl::OkStatus();
  return WithValues([this](const std::vector<Span>& values) {
    return averager_->AfterOptimizerStep(values);
  });
}

absl::Status DistributedDataParallel::AverageParameters() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (averager_ == nullptr) return absl::OkStatus();
  return WithValues([this](const std::vector<Span>& values) {
    return averager_->AverageNow(values);
  });
}

absl::Status DistributedDataParallel::WithValues(
    const std::function<absl::Status(const std::vector<Span>&)>& action) {
  ::torch::NoGradGuard no_grad;
  std::vector<Tensor> dense;
  std::vector<Span> values;
  Keep(Guarded("reading the parameters", [&] {
    for (const Parameter& parameter : parameters_) {
      dense.push_back(parameter.tensor.detach().contiguous());
      Span value = BytesOf(dense.back());
      value.count = dense.back().numel();
      value.dtype = *ToDType(dense.back().scalar_type());
      values.push_back(value);
    }
  }));
  if (status_.ok()) Keep(action(values));
  COXSWAIN_RETURN_IF_ERROR(status_);
  Keep(Guarded("writing the parameters", [&] {
    for (size_t i = 0; i < dense.size(); ++i) {
      Tensor& tensor = parameters_[i].tensor;
      if (!tensor.is_alias_of(dense[i])) tensor.copy_(dense[i]);
    }
  }));
  return status_;
}

absl::Status DistributedDataParallel::BroadcastModule() {
  ::torch::NoGradGuard no_grad;
  std::vector<Tensor> tensors = module_->parameters();
  for (const Tensor& buffer : module_->buffers()) tensors.push_back(buffer);
  std::vector<Tensor> dense;
  std::vector<Span> spans;
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading the module", [&] {
    for (const Tensor& tensor : tensors) {
      dense.push_back(tensor.defined() ? tensor.detach().contiguous()
                                       : Tensor());
      if (tensor.defined()) spans.push_back(BytesOf(dense.back()));
    }
  }));
  COXSWAIN_RETURN_IF_ERROR(reducer_->BroadcastFromRoot(spans));
  return Guarded("writing the module", [&] {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined() || tensors[i].is_alias_of(dense[i])) continue;
      tensors[i].copy_(dense[i]);
    }
  });
}

void DistributedDataParallel::RegisterHooks() {
  using ::torch::autograd::variable_list;
  using ::torch::autograd::utils::LambdaPostHook;
  int index = 0;
  for (const NamedTensor& named : TrainableParameters(*module_)) {
    Parameter parameter;
    parameter.tensor = named.tensor;
    const Span view = reducer_->GradientView(index);
    parameter.view = ::torch::from_blob(view.data, named.tensor.sizes(),
                                        FromDType(view.dtype));
    parameter.accumulate_grad =
        ::torch::autograd::impl::grad_accumulator(named.tensor);
    parameter.hook_key = parameter.accumulate_grad->add_post_hook(
        std::make_unique<LambdaPostHook>(
            [this, index](const variable_list& outputs, const variable_list&) {
              OnGradient(index);
              return outputs;
            }));
    parameters_.push_back(std::move(parameter));
    ++index;
  }
}

void DistributedDataParallel::Keep(const absl::Status& status) {
  if (status.ok() || !status_.ok()) return;
  // The peers may be waiting for this rank.
  reducer_->Abort(status);
  reducer_->Rollback();
  status_ = reducer_->status();
}

MicroBatch DistributedDataParallel::Accumulate() {
  if (exchange_due_ || phase_ != Phase::kNone) {
    Keep(absl::FailedPreconditionError(absl::StrCat(
        "a micro-batch begins, but the one before it, which ",
        phase_ == Phase::kNone
            ? "exchanges gradients, did not: run its backward outside NoSync, "
              "then Synchronize"
            : "exchanged gradients, was not finished: call FinishStep")));
  }
  absl::StatusOr<MicroBatch> micro = accumulator_.BeginMicroBatch();
  Keep(micro.status());
  if (!status_.ok()) {
    micro = MicroBatch();
    micro->sync = false;
  }
  sync_ = micro->sync;
  exchange_due_ = sync_;
  return *micro;
}

absl::Status DistributedDataParallel::Backward(const Tensor& loss) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  Keep(Guarded("backward", [&] { loss.backward(); }));
  COXSWAIN_RETURN_IF_ERROR(Synchronize());
  return phase_ == Phase::kAveraged ? FinishStep() : status_;
}

absl::Status DistributedDataParallel::Synchronize() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (!exchanges()) return absl::OkStatus();
  if (phase_ == Phase::kRunning) {
    Keep(absl::FailedPreconditionError(
        "the backward pass that exchanges gradients did not run to its end"));
  }
  if (phase_ == Phase::kNone) {
    Keep(reducer_->BeginStep());
    FinishExchange();
  }
  return status_;
}

absl::Status DistributedDataParallel::FinishStep(bool apply) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (phase_ != Phase::kAveraged) {
    return absl::FailedPreconditionError(
        "there is no exchanged step to finish; call Synchronize first");
  }
  phase_ = Phase::kNone;
  exchange_due_ = false;
  if (apply && std::exchange(averager_due_, averager_ != nullptr)) {
    Keep(absl::FailedPreconditionError(absl::StrCat(
        "the step before this one was applied without telling the averager ",
        averager_->spec(),
        "; call AfterOptimizerStep after each optimizer step")));
    return status_;
  }
  if (apply) {
    Keep(CheckAverager());
    if (status_.ok()) Keep(reducer_->Commit());
  } else {
    reducer_->Rollback();
  }
  return status_;
}

absl::Status DistributedDataParallel::CheckAverager() const {
  if (!hook_->needs_averager() || hook_->step() == averager_->step()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the hook ", hook_->spec(), " has counted ", hook_->step(),
      " steps and its averager ", averager_->step(),
      ", so they would not change over to local steps together; load the "
      "states of both from the same checkpoint"));
}

absl::StatusOr<bool> DistributedDataParallel::Flush() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  const Tail tail = accumulator_.EndOfData();
  if (tail.micros == 0) return false;
  ::torch::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined()) gradient.mul_(tail.rescale);
  }
  sync_ = true;
  COXSWAIN_RETURN_IF_ERROR(Synchronize());
  COXSWAIN_RETURN_IF_ERROR(FinishStep());
  return true;
}

void DistributedDataParallel::OnGradient(int parameter) {
  if (!exchanges() || !status_.ok()) return;
  if (phase_ != Phase::kRunning) {
    Keep(reducer_->BeginStep());
    if (!status_.ok()) return;
    phase_ = Phase::kRunning;
    ::torch::autograd::Engine::get_default_engine().queue_callback(
        [this] { FinishExchange(); });
  }
  Keep(Mark(parameter));
}

absl::Status DistributedDataParallel::Mark(int parameter) {
  Parameter& slot = parameters_[parameter];
  const Tensor gradient = slot.tensor.grad();
  if (!gradient.defined()) return absl::OkStatus();  // stays unmarked
  if (gradient.layout() != ::torch::kStrided) {
    return absl::UnimplementedError(absl::StrCat(
        "the gradient of \"", reducer_->parameters()[parameter].name,
        "\" is sparse; only dense ones can be averaged"));
  }
  if (gradient.is_alias_of(slot.view) && gradient.is_contiguous()) {
    return reducer_->MarkReady(parameter);
  }
  Tensor dense;
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading a gradient", [&] {
    ::torch::NoGradGuard no_grad;
    dense = gradient.detach().to(slot.view.scalar_type()).contiguous();
  }));
  Span span = reducer_->GradientView(parameter);
  span.data = dense.data_ptr();
  span.count = dense.numel();
  COXSWAIN_RETURN_IF_ERROR(reducer_->MarkReady(parameter, span));
  // Frees the gradient's own memory while the pass goes on.
  if (options_.gradient_as_bucket_view) slot.tensor.mutable_grad() = slot.view;
  return absl::OkStatus();
}

void DistributedDataParallel::FinishExchange() {
  // What was summed up locally counts, even if this pass did not reach it.
  for (const int parameter : reducer_->Unmarked()) {
    if (!status_.ok()) break;
    if (parameters_[parameter].tensor.grad().defined()) Keep(Mark(parameter));
  }
  Keep(reducer_->Finish());
  phase_ = Phase::kNone;
  if (!status_.ok()) return;
  phase_ = Phase::kAveraged;
  Keep(Guarded("writing the gradients", [this] { TakeAverages(); }));
}

void DistributedDataParallel::TakeAverages() {
  ::torch::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    Tensor& gradient = parameter.tensor.mutable_grad();
    if (options_.gradient_as_bucket_view) {
      gradient = parameter.view;
    } else if (gradient.defined()) {
      gradient.copy_(parameter.view);
    } else {
      gradient = parameter.view.clone();
    }
  }
}

}  // namespace coxswain::torch
