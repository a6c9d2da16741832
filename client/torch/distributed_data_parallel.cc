#include "client/torch/distributed_data_parallel.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/reduce/trace_file.h"
#include "client/torch/ddp_internal.h"
#include "client/torch/module_tensors.h"
#include "client/torch/static_graph.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;
using BufferForm = std::pair<::torch::ScalarType, std::vector<int64_t>>;

BufferForm FormOf(const Tensor& buffer) {
  return {buffer.scalar_type(), buffer.sizes().vec()};
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
  COXSWAIN_RETURN_IF_ERROR(CheckAskedFor(options));
  const schedule::Plan plan = PlanOf(options);
  COXSWAIN_RETURN_IF_ERROR(
      CheckPlan(options, plan, communicator->size(), *hook, averager.get()));
  COXSWAIN_RETURN_IF_ERROR(CheckPlannedHook(options, *hook));
  COXSWAIN_ASSIGN_OR_RETURN(
      Accumulator accumulator,
      Accumulator::Create({plan, communicator->rank(), communicator->size()}));
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
  // First what may still be at work on the gradients.
  if (reducer_ != nullptr) reducer_->Stop();
  for (const auto& parameter : parameters_) {
    (void)Guarded("giving a gradient back", [&] { Release(*parameter); });
  }
  // On a GPU, waits until they have been copied out of the buckets.
  reducer_.reset();
}

absl::StatusOr<HookState> DistributedDataParallel::TakeHookState(
    std::unique_ptr<DistributedDataParallel> ddp) {
  // Rolls a step in flight back.
  ddp->reducer_->Stop();
  return ddp->hook().SaveOwn();
}

absl::Status DistributedDataParallel::Connect(Communicator* communicator) {
  communicator_ = communicator;
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> specs,
                            DescribeParameters(*module_));
  COXSWAIN_ASSIGN_OR_RETURN(ReducerOptions options, CompleteReducerOptions());
  COXSWAIN_RETURN_IF_ERROR(CompleteForDevice(&options));
  COXSWAIN_ASSIGN_OR_RETURN(
      reducer_,
      Reducer::Create(options, std::move(specs), hook_.get(), communicator));
  COXSWAIN_RETURN_IF_ERROR(BroadcastNews(/*same=*/options_.same_at_start));
  COXSWAIN_RETURN_IF_ERROR(
      Guarded("registering with autograd", [this] { TakeParameters(); }));
  return ConfigureAverager();
}

absl::StatusOr<ReducerOptions>
DistributedDataParallel::CompleteReducerOptions() {
  ReducerOptions options = options_.reducer;
  coxswain::FollowPlan(plan(), communicator_->size(), &options);
  options.statistics |= options_.skip_non_finite;
  // Votes have reasons, by rank.
  options.finds_non_finite =
      options_.skip_non_finite && plan().terms.commit_vote;
  options.slices = zero() > 0;
  options.release_buckets = zero() == 2;
  options.settings = AgreedByAll();
  if (options_.overlapped_optimizer) {
    options.on_average = [this](const Bucket& bucket) {
      return StepOptimizers(bucket);
    };
  }
  COXSWAIN_RETURN_IF_ERROR(
      AddTrace(options_.trace_file, communicator_->rank(), &options));
  return options;
}

std::map<std::string, std::string> DistributedDataParallel::AgreedByAll()
    const {
  std::map<std::string, std::string> settings = options_.reducer.settings;
  for (const auto& [name, value] : AgreedSettings(options_)) {
    settings[name] = value;
  }
  // They are broadcast, which needs all ranks to have the same.
  settings.merge(DescribeUntrained(*module_));
  return settings;
}

absl::Status DistributedDataParallel::CompleteForDevice(
    ReducerOptions* options) const {
  const Device device = DeviceOf(*module_);
  if (device.kind == Device::Kind::kCpu) return absl::OkStatus();
  options->finds_non_finite = false;
  if (options_.overlapped_optimizer) {
    return absl::UnimplementedError(
        "overlapped_optimizer steps on a thread of its own, whose work on a "
        "GPU nothing orders with the program's: leave it out, or keep the "
        "parameters on the CPU");
  }
  if (!options->caller_stream) {
    options->caller_stream = [device] { return CurrentStream(device); };
  }
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::Broadcast(
    const std::vector<Tensor>& tensors, int root) {
  const ::torch::NoGradGuard no_grad;
  std::vector<Tensor> dense;
  std::vector<Span> spans;
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading the module", [&] {
    for (const Tensor& tensor : tensors) {
      dense.push_back(tensor.detach().contiguous());
      spans.push_back(BytesOf(dense.back()));
    }
  }));
  COXSWAIN_RETURN_IF_ERROR(reducer_->BroadcastFromRoot(spans, root));
  return Guarded("writing the module", [&] {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].is_alias_of(dense[i])) tensors[i].copy_(dense[i]);
    }
  });
}

absl::Status DistributedDataParallel::BroadcastNews(bool same) {
  std::map<std::string, Tensor> known;
  std::vector<Tensor> news;
  for (const NamedTensor& named : TensorsOf(*module_)) {
    // One that was frozen until now is news, too.
    const std::string key =
        absl::StrCat(named.name, named.tensor.requires_grad() ? "" : " frozen");
    const auto found = known_.find(key);
    const bool old =
        found != known_.end() && found->second.is_same(named.tensor);
    if (!old) news.push_back(named.tensor);
    known[key] = named.tensor;
  }
  known_ = std::move(known);
  if (!same) COXSWAIN_RETURN_IF_ERROR(Broadcast(news, /*root=*/0));
  buffer_forms_.clear();
  for (const auto& item : module_->named_buffers()) {
    if (!item.value().defined()) continue;
    buffer_forms_[item.key()] = FormOf(item.value());
  }
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::BroadcastBuffers() {
  if (!options_.broadcast_buffers || buffer_forms_.empty()) {
    return absl::OkStatus();
  }
  const auto changed = [](absl::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        what,
        " since the ranks compared their buffers: call UpdateParameters "
        "on all ranks after such a change"));
  };
  std::vector<Tensor> buffers;
  for (const auto& item : module_->named_buffers()) {
    if (!item.value().defined()) continue;
    const auto agreed = buffer_forms_.find(item.key());
    if (agreed == buffer_forms_.end() ||
        agreed->second != FormOf(item.value())) {
      return changed(absl::StrCat(
          "the buffer \"", item.key(), "\", now of type ",
          ::torch::toString(item.value().scalar_type()), " and shape [",
          absl::StrJoin(item.value().sizes().vec(), ", "), "], was ",
          agreed == buffer_forms_.end() ? "added" : "changed"));
    }
    buffers.push_back(item.value());
  }
  if (buffers.size() != buffer_forms_.size()) {
    return changed(absl::StrCat("of ", buffer_forms_.size(), " buffers, ",
                                buffer_forms_.size() - buffers.size(),
                                " were removed"));
  }
  return Broadcast(buffers, reducer_->report().first_live_rank);
}

void DistributedDataParallel::TakeParameters() {
  std::vector<std::unique_ptr<Parameter>> before = std::move(parameters_);
  parameters_.clear();
  for (const NamedTensor& named : TrainableParameters(*module_)) {
    const auto old =
        std::find_if(before.begin(), before.end(), [&](const auto& parameter) {
          return parameter != nullptr &&
                 parameter->gradient.parameter().is_same(named.tensor);
        });
    parameters_.push_back(old == before.end() ? Register(named.tensor)
                                              : std::move(*old));
    parameters_.back()->index = static_cast<int>(parameters_.size()) - 1;
  }
  for (const auto& parameter : before) {
    if (parameter != nullptr) Release(*parameter);
  }
  if (options_.static_graph) {
    std::vector<std::string> names;
    for (const ParameterSpec& spec : reducer_->parameters()) {
      names.push_back(spec.name);
    }
    static_graph_ = std::make_unique<StaticGraph>(std::move(names));
  }
  PointGradients();
}

std::unique_ptr<DistributedDataParallel::Parameter>
DistributedDataParallel::Register(const Tensor& tensor) {
  using ::torch::autograd::variable_list;
  using ::torch::autograd::utils::LambdaPostHook;
  const bool as_view =
      zero() == 0 ? options_.gradient_as_bucket_view : zero() == 1;
  auto parameter =
      std::make_unique<Parameter>(tensor, as_view, /*sharded=*/zero() > 0);
  if (options_.overlapped_optimizer) {
    parameter->optimizer = options_.overlapped_optimizer(tensor);
    TORCH_CHECK(parameter->optimizer != nullptr,
                "overlapped_optimizer made no optimizer");
  }
  parameter->accumulate_grad =
      ::torch::autograd::impl::grad_accumulator(tensor);
  parameter->hook_key = parameter->accumulate_grad->add_post_hook(
      std::make_unique<LambdaPostHook>(
          [this, raw = parameter.get()](const variable_list& outputs,
                                        const variable_list& inputs) {
            OnGradient(*raw, inputs[0]);
            return outputs;
          }));
  return parameter;
}

void DistributedDataParallel::Release(Parameter& parameter) {
  if (parameter.hook_key != 0) {
    parameter.accumulate_grad->del_post_hook(parameter.hook_key);
    parameter.hook_key = 0;
  }
  parameter.gradient.Release();
}

void DistributedDataParallel::ReleaseUntrained() {
  const std::vector<NamedTensor> trained = TrainableParameters(*module_);
  for (const auto& parameter : parameters_) {
    const bool stays = std::any_of(
        trained.begin(), trained.end(), [&](const NamedTensor& named) {
          return parameter->gradient.parameter().is_same(named.tensor);
        });
    if (!stays) Release(*parameter);
  }
}

void DistributedDataParallel::PointGradients() {
  layout_version_ = reducer_->layout_version();
  for (const auto& parameter : parameters_) {
    parameter->gradient.Point(reducer_->Place(parameter->index));
  }
}

void DistributedDataParallel::Keep(const absl::Status& status) {
  if (status.ok() || !status_.ok()) return;
  // The peers may be waiting for this rank.
  reducer_->Abort(status);
  reducer_->Rollback();
  status_ = reducer_->status();
}

}  // namespace coxswain::torch
