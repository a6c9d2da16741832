// What DistributedDataParallel does between steps: averages of parameters, and
// changes of the parameters, the hook and the buckets.

#include <torch/utils.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/ddp_parameter.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {

using ::torch::Tensor;

absl::Status DistributedDataParallel::WithValues(
    const std::function<absl::Status(const std::vector<Span>&)>& action) {
  const ::torch::NoGradGuard no_grad;
  std::vector<Tensor> dense;
  std::vector<Span> values;
  Keep(Guarded("reading the parameters", [&] {
    for (const auto& parameter : parameters_) {
      // Averagers work in the CPU's memory; what is there is not copied.
      dense.push_back(
          parameter->gradient.parameter().detach().contiguous().cpu());
      values.push_back(ElementsOf(dense.back()));
    }
  }));
  if (status_.ok()) Keep(action(values));
  COXSWAIN_RETURN_IF_ERROR(status_);
  Keep(Guarded("writing the parameters", [&] {
    for (size_t i = 0; i < dense.size(); ++i) {
      const Tensor& tensor = parameters_[i]->gradient.parameter();
      if (!tensor.is_alias_of(dense[i])) tensor.copy_(dense[i]);
    }
  }));
  return status_;
}

absl::Status DistributedDataParallel::AfterOptimizerStep() {
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  step_due_ = false;
  // Of a step that was skipped it is not told.
  const bool counts = !skipped() || averager_due_;
  averager_due_ = false;
  if (averager_ != nullptr && counts) {
    COXSWAIN_RETURN_IF_ERROR(
        WithValues([this](const std::vector<Span>& values) {
          return averager_->AfterOptimizerStep(values);
        }));
  }
  return FollowNextPlan();
}

absl::Status DistributedDataParallel::ConfigureAverager() {
  if (averager_ == nullptr) return absl::OkStatus();
  return WithValues([this](const std::vector<Span>& values) {
    return averager_->Configure(reducer_->parameters(), values, *communicator_);
  });
}

absl::Status DistributedDataParallel::AverageParameters() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  COXSWAIN_ASSIGN_OR_RETURN(const bool apart, UniteParameters());
  if (apart) Keep(BroadcastBuffers());
  return status_;
}

absl::StatusOr<bool> DistributedDataParallel::UniteParameters() {
  if (averager_ == nullptr) return false;
  const bool apart = averager_->diverged();
  COXSWAIN_RETURN_IF_ERROR(WithValues([this](const std::vector<Span>& values) {
    return averager_->AverageNow(values);
  }));
  return apart;
}

absl::Status DistributedDataParallel::CheckBetweenSteps(
    absl::string_view what) const {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (phase_ == Phase::kNone && !passes_.exchange_due())
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, " is for between steps, but one has begun to exchange gradients: ",
      "end it with Backward, or with Synchronize and FinishStep"));
}

absl::Status DistributedDataParallel::UpdateParameters() {
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("UpdateParameters"));
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> specs,
                            DescribeParameters(*module_));
  COXSWAIN_ASSIGN_OR_RETURN(const bool apart, UniteParameters());
  // A gradient is copied out of its bucket, which the change of parameters
  // frees once that has run.
  Keep(Guarded("giving gradients back", [this] { ReleaseUntrained(); }));
  if (status_.ok()) {
    Keep(reducer_->ChangeParameters(std::move(specs), AgreedByAll()));
  }
  if (status_.ok()) Keep(BroadcastNews());
  if (status_.ok() && apart) Keep(BroadcastBuffers());
  COXSWAIN_RETURN_IF_ERROR(status_);
  Keep(Guarded("registering with autograd", [this] { TakeParameters(); }));
  COXSWAIN_RETURN_IF_ERROR(status_);
  return ConfigureAverager();
}

absl::Status DistributedDataParallel::ChangeHook(std::unique_ptr<Hook> hook,
                                                 bool carry_state) {
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("ChangeHook"));
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  if (averager_ != nullptr || hook->needs_averager()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the hook ", hook_->spec(), " cannot give way to ", hook->spec(),
        ": one of them works with an averager; make a new wrapper instead"));
  }
  absl::Status changed = reducer_->ChangeHook(hook.get(), carry_state);
  if (changed.ok()) {
    hook_ = std::move(hook);
    Keep(Guarded("moving the gradients", [this] { PointGradients(); }));
    return status_;
  }
  // If only the hooks did not match, training can go on with the old one.
  status_ = reducer_->status();
  return changed;
}

absl::Status DistributedDataParallel::ChangeBuckets(
    const BucketPlanOptions& buckets) {
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("ChangeBuckets"));
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  absl::Status changed = reducer_->ChangeBuckets(buckets);
  status_ = reducer_->status();
  if (!changed.ok()) return changed;
  Keep(Guarded("moving the gradients", [this] { PointGradients(); }));
  return status_;
}

}  // namespace coxswain::torch
