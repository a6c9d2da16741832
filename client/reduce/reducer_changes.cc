// The part of Reducer that acts between steps: its layout, what may change, and
// what the ranks have to agree on after that.

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/device_queue.h"
#include "client/reduce/agreement.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/gradient_memory.h"
#include "client/reduce/hook_change.h"
#include "client/reduce/reducer.h"
#include "client/reduce/root_broadcast.h"
#include "schedule/plan.h"

namespace coxswain {
namespace {

absl::Status CheckParameters(const std::vector<ParameterSpec>& parameters) {
  if (parameters.empty()) {
    return absl::InvalidArgumentError(
        "the model has no trainable parameters, so there is nothing to reduce");
  }
  std::set<std::string> names;
  for (const ParameterSpec& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parameters are named \"", parameter.name,
                       "\"; give each one a name of its own"));
    }
  }
  return absl::OkStatus();
}

std::string Name(const Device& device) {
  return device.kind == Device::Kind::kCpu
             ? "the CPU"
             : absl::StrCat("cuda:", device.index);
}

// Whether they are all where the communicator moves memory.
absl::Status CheckDevice(const std::vector<ParameterSpec>& parameters,
                         Communicator& communicator) {
  const ParameterSpec& first = parameters[0];
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.device == first.device) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter \"", first.name, "\" is on ", Name(first.device), " and \"",
        parameter.name, "\" on ", Name(parameter.device),
        "; a model that is reduced lies on one device: move it there as a "
        "whole"));
  }
  DeviceQueue* const queue = communicator.device_queue();
  const Device moved = queue == nullptr ? Device() : queue->runtime().device();
  if (moved == first.device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the parameters are on ", Name(first.device), ", and the communicator (",
      communicator.backend(), ") moves memory of ", Name(moved),
      first.device.kind == Device::Kind::kCpu
          ? "; move the model there, or connect through a back end of the CPU"
          : "; connect through nccl, by setting SessionOptions::device (or "
            "CommunicatorOptions::device) to the model's device"));
}

// Whether slices can be as the options have them where the parameters are.
absl::Status CheckSlices(const ReducerOptions& options,
                         const ParameterSpec& first) {
  if (first.device.kind == Device::Kind::kCpu) return absl::OkStatus();
  const std::string where =
      absl::StrCat("parameter \"", first.name, "\" is on ", Name(first.device));
  if (options.release_buckets) {
    return absl::InvalidArgumentError(absl::StrCat(
        where,
        ", and release_buckets (zero=2) is for the CPU's memory; leave it out "
        "(zero=1): buckets then keep their memory"));
  }
  if (options.hybrid.shard != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        where,
        ", and hybrid sharding is for the CPU's memory; leave it out, with a "
        "mesh of dp or shard alone: slices are then those of all ranks"));
  }
  return absl::OkStatus();
}

std::unique_ptr<GradientMemory> MakeMemory(const ReducerOptions& options,
                                           Communicator& communicator) {
  if (communicator.device_queue() == nullptr) return MakeHostGradientMemory();
  return MakeDeviceGradientMemory(communicator.device_queue(),
                                  options.caller_stream);
}

BucketMemory KindOfMemory(const ReducerOptions& options) {
  if (options.release_buckets) return BucketMemory::kReleased;
  return options.slices ? BucketMemory::kPadded : BucketMemory::kWhole;
}

// Reversed registration order, which a layout is made by at first.
std::vector<int> FirstOrder(size_t parameters) {
  std::vector<int> order(parameters);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

}  // namespace

absl::Status Reducer::ApplyLayout(const BucketPlanOptions& buckets,
                                  std::vector<ParameterSpec> parameters,
                                  const std::vector<int>& order) {
  COXSWAIN_RETURN_IF_ERROR(CheckParameters(parameters));
  COXSWAIN_RETURN_IF_ERROR(CheckDevice(parameters, *communicator_));
  COXSWAIN_RETURN_IF_ERROR(CheckSlices(options_, parameters[0]));
  if (memory_ == nullptr) memory_ = MakeMemory(options_, *communicator_);
  COXSWAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<BucketLayout> layout,
      BucketLayout::Create(buckets, parameters, order, slicing(), *memory_,
                           KindOfMemory(options_)));
  std::unique_ptr<OwnSlices> own;
  if (pool_ != nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(own,
                              OwnSlices::Create(layout->buckets(), slicing()));
  }
  if (hybrid_ != nullptr) hybrid_->SetBuckets(layout->buckets());
  COXSWAIN_RETURN_IF_ERROR(hook_->Configure(parameters, communicator_->size()));
  absl::Status filled = FillLayout(*layout, parameters);
  if (!filled.ok()) {
    (void)memory_->FollowCaller();
    memory_->Quiesce(options_.after_abort());
    return filled;
  }
  NoteMemory(*layout);
  layout_ = std::move(layout);
  own_ = std::move(own);
  if (pool_ != nullptr) pool_->SetBuckets(layout_->buckets());
  layout_hash_ = HashLayout(layout_->buckets());
  parameters_ = std::move(parameters);
  order_ = order;
  ++layout_version_;
  return absl::OkStatus();
}

absl::Status Reducer::FillLayout(BucketLayout& layout,
                                 const std::vector<ParameterSpec>& parameters) {
  if (pool_ == nullptr && layout_ != nullptr) {
    COXSWAIN_RETURN_IF_ERROR(
        layout.CopyFrom(*layout_, parameters_, parameters, *memory_));
  }
  // The old buckets are about to be freed.
  return memory_->Settle(layout.buckets(), options_.timeout);
}

void Reducer::NoteMemory(const BucketLayout& layout) {
  MutexLock lock(&mutex_);
  BucketMemoryUse& use = totals_.bucket_memory;
  // The one before it is still there.
  use.peak_bytes = std::max(use.peak_bytes, use.bytes + layout.bytes());
  use.bytes = layout.bytes();
  use.allocations += static_cast<int64_t>(layout.buckets().size());
}

absl::Status Reducer::Rebuild() {
  if (frozen_ || exchange_->ready_order().empty()) return absl::OkStatus();
  frozen_ = true;
  const std::vector<int> order = exchange_->ready_order();
  if (order == FirstOrder(parameters_.size())) return absl::OkStatus();
  const absl::Status status = ApplyLayout(options_.buckets, parameters_, order);
  return status.ok() ? status
                     : Fail(WithPrefix("dividing the buckets anew: ", status));
}

absl::Status Reducer::ChangeBuckets(const BucketPlanOptions& buckets) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to change its buckets"));
  BucketPlanOptions changed = options_.buckets;
  changed.first_bucket_bytes = buckets.first_bucket_bytes;
  changed.bucket_bytes = buckets.bucket_bytes;
  COXSWAIN_RETURN_IF_ERROR(ApplyLayout(changed, parameters_, order_));
  options_.buckets = changed;
  agreed_ = false;
  return absl::OkStatus();
}

absl::Status Reducer::ChangeParameters(
    std::vector<ParameterSpec> parameters,
    std::optional<std::map<std::string, std::string>> settings) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to change its parameters"));
  COXSWAIN_RETURN_IF_ERROR(
      ApplyLayout(options_.buckets, std::move(parameters), {}));
  if (settings) options_.settings = *std::move(settings);
  exchange_.reset();  // its results are by the old numbers
  // A new order is learned, unless the hook needs the layout to stay.
  frozen_ = false;
  agreed_ = false;
  return absl::OkStatus();
}

absl::Status Reducer::ChangeHook(Hook* hook, bool carry_state) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to change its hook"));
  COXSWAIN_RETURN_IF_ERROR(CheckHook(*hook));
  std::unique_ptr<HybridHook> hybrid = Wrap(hook);
  if (hybrid != nullptr) {
    hybrid->SetBuckets(buckets());
    hook = hybrid.get();
  }
  HookChange change;
  change.parameters = &parameters_;
  change.communicator = communicator_;
  change.timeout = options_.timeout;
  for (const Bucket& bucket : buckets()) change.elements += bucket.data.count;
  change.carry_state = carry_state;
  change.fail = [this](const absl::Status& status) { return Fail(status); };
  COXSWAIN_RETURN_IF_ERROR(ChangeOver(*hook_, *hook, change));
  hook_ = hook;
  hybrid_ = std::move(hybrid);
  agreed_ = false;
  return absl::OkStatus();
}

absl::Status Reducer::ChangePlan(const schedule::Plan& plan) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to change its plan"));
  ReducerOptions options = options_;
  FollowPlan(plan, communicator_->size(), &options);
  COXSWAIN_RETURN_IF_ERROR(CheckReducerOptions(options));
  // The header comes and goes with all ranks, or none of them gets further.
  if (options.uneven_inputs != options_.uneven_inputs ||
      options.end_at_first != options_.end_at_first ||
      ((options_.slices || options_.counts_in_norm) &&
       options.norm_by_vote != options_.norm_by_vote)) {
    agreed_ = false;
  }
  // Not as a whole: other threads may read what stays, to abort.
  FollowPlan(plan, communicator_->size(), &options_);
  return absl::OkStatus();
}

absl::Status Reducer::BroadcastFromRoot(const std::vector<Span>& spans,
                                        int root) {
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(status_);
    if (state_ == State::kCollecting) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", communicator_->rank(), " begins a broadcast, but its step ",
          step_, " is still being exchanged; call Finish first"));
    }
  }
  COXSWAIN_RETURN_IF_ERROR(EnsureAgreement());
  absl::Status status = memory_->FollowCaller();
  if (status.ok()) {
    status = BroadcastSpans(*communicator_, spans, root, options_.timeout);
  }
  if (status.ok() || absl::IsUnimplemented(status)) return status;
  return Fail(status);
}

Span Reducer::OwnSlice(const Bucket& bucket) const {
  if (pool_ != nullptr) return own_->at(bucket.index);
  return BucketSlices::Of(bucket.data, slicing().size())
      .Slice(bucket.data, slicing().rank());
}

absl::Status Reducer::CheckGather(const std::vector<Span>& wholes) const {
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(status_);
    if (state_ == State::kCollecting) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", communicator_->rank(), " gathers slices, but its step ",
          step_, " is still being exchanged; call Finish first"));
    }
  }
  if (wholes.size() != buckets().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("slices of ", buckets().size(),
                     " buckets are gathered together, got ", wholes.size()));
  }
  for (const Bucket& bucket : buckets()) {
    const Span& whole = wholes[static_cast<size_t>(bucket.index)];
    if (whole.count == bucket.data.count && whole.dtype == bucket.data.dtype &&
        whole.device == bucket.data.device) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "bucket ", bucket.index, " has ", bucket.data.count, " x ",
        NameOf(bucket.data.dtype), " on ", Name(bucket.data.device),
        ", what is gathered in its place ", whole.count, " x ",
        NameOf(whole.dtype), " on ", Name(whole.device)));
  }
  return absl::OkStatus();
}

absl::Status Reducer::GatherSlices(const std::vector<Span>& wholes) {
  COXSWAIN_RETURN_IF_ERROR(CheckGather(wholes));
  COXSWAIN_RETURN_IF_ERROR(EnsureAgreement());
  const absl::Status followed = memory_->FollowCaller();
  if (!followed.ok()) return Fail(WithPrefix("gathering slices: ", followed));
  std::vector<WorkPtr> works;
  for (const Span& whole : wholes) {
    const BucketSlices slices = BucketSlices::Of(whole, slicing().size());
    works.push_back(slicing().AllGather(
        slices.PaddedSlice(whole, slicing().rank()), slices.Padded(whole)));
  }
  absl::Status first;
  for (const WorkPtr& work : works) {
    const absl::Status status =
        work->Wait(first.ok() ? options_.timeout : options_.after_abort());
    if (status.ok() || !first.ok()) continue;
    first = Fail(status);
    // Which has aborted what still uses the memory.
    (void)work->Wait(options_.after_abort());
  }
  return first;
}

absl::Status Reducer::EnsureAgreement() {
  if (agreed_ || !options_.verify) return absl::OkStatus();
  absl::Status status =
      CheckAgreement(*communicator_, Description(), options_.timeout);
  agreed_ = status.ok();
  if (status.ok()) return status;
  if (!absl::IsFailedPrecondition(status)) return Fail(status);
  // All ranks have seen the difference, and need the communicator for that.
  (void)Keep(status);
  return this->status();
}

std::vector<std::string> Reducer::Description() const {
  const BucketPlanOptions& buckets = options_.buckets;
  std::vector<std::string> lines = {
      absl::StrCat("hook ", hook_->spec()),
      absl::StrCat("committed steps of the hook ", hook_->step()),
      absl::StrCat("first_bucket_bytes ", buckets.first_bucket_bytes),
      absl::StrCat("bucket_bytes ", buckets.bucket_bytes),
      absl::StrCat("rebuild ", options_.rebuild),
      absl::StrCat("find_unused_parameters ", options_.find_unused_parameters),
      absl::StrCat("uneven_inputs ", options_.uneven_inputs),
      absl::StrCat("end_at_first ", options_.end_at_first),
      absl::StrCat("plan version ", options_.plan_version),
      absl::StrCat("max_norm ", options_.max_norm)};
  if (options_.slices) {
    lines.push_back("slices 1");
    lines.push_back(absl::StrCat("ranks with slices ", slicing().size()));
  }
  if (options_.slices || options_.counts_in_norm) {
    lines.push_back(absl::StrCat("norm by vote ", options_.norm_by_vote));
  }
  if (options_.counts_in_norm) lines.push_back("norm over stages 1");
  for (const std::string& name : buckets.late_parameters) {
    lines.push_back(absl::StrCat("late parameter ", name));
  }
  for (const std::string& name : buckets.separate_parameters) {
    lines.push_back(absl::StrCat("separate parameter ", name));
  }
  for (const std::string& name : buckets.uncounted_parameters) {
    lines.push_back(absl::StrCat("uncounted parameter ", name));
  }
  for (const auto& [name, value] : options_.settings) {
    lines.push_back(absl::StrCat(name, " ", value));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    lines.push_back(DescribeParameter(static_cast<int>(i), parameters_[i]));
  }
  return lines;
}

}  // namespace coxswain
