// What DistributedDataParallel does between steps: averages of parameters, and
// changes of the parameters, the buckets, the hook and the plan.

#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/reduce/averager_change.h"
#include "client/torch/ddp_internal.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"
#include "schedule/plan.h"

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
  // It is not called after a step that was skipped.
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
  if (phase_ == Phase::kNone && !passes_.exchange_due() && !window_.open()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      what, " is for between steps, but one has begun to exchange gradients, ",
      "or a window is declared: ",
      "end it with Backward, or with Synchronize and FinishStep"));
}

absl::Status DistributedDataParallel::CheckWhole(absl::string_view what) const {
  if (zero() == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, " divides the buckets anew, and with zero=", zero(),
      " the optimizer's state is cut by them: make a new wrapper, and a "
      "ShardedOptimizer that loads the pieces of this one's"));
}

absl::Status DistributedDataParallel::UpdateParameters() {
  COXSWAIN_RETURN_IF_ERROR(CheckWhole("UpdateParameters"));
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
        "the hook ", hook_->spec(), " cannot be replaced by ", hook->spec(),
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
  COXSWAIN_RETURN_IF_ERROR(CheckWhole("ChangeBuckets"));
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("ChangeBuckets"));
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  absl::Status changed = reducer_->ChangeBuckets(buckets);
  status_ = reducer_->status();
  if (!changed.ok()) return changed;
  Keep(Guarded("moving the gradients", [this] { PointGradients(); }));
  return status_;
}

// ---- changes of the plan ----

bool DistributedDataParallel::ChangesHook(const schedule::Plan& next) const {
  schedule::StepSettings before = plan();
  if (before.hook.empty()) before.hook = hook_->spec();
  return !next.SameHook(before);
}

absl::Status DistributedDataParallel::FollowNextPlan() {
  if (!next_plan_ || passes_.in_window() || passes_.exchange_due() ||
      phase_ != Phase::kNone) {
    return status_;
  }
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  const schedule::Plan next = *std::exchange(next_plan_, std::nullopt);
  KeepShared(FollowPlan(next));
  return status_;
}

absl::Status DistributedDataParallel::FollowPlan(const schedule::Plan& next) {
  const bool other_hook = ChangesHook(next);
  COXSWAIN_RETURN_IF_ERROR(accumulator_.ChangePlan(next));
  COXSWAIN_RETURN_IF_ERROR(reducer_->ChangePlan(next));
  if (other_hook) return FollowHook(next);
  return CheckPlan(options_, next, communicator_->size(), *hook_,
                   averager_.get());
}

absl::Status DistributedDataParallel::FollowHook(const schedule::Plan& next) {
  const std::string change =
      absl::StrCat("version ", next.version, " of the plan changes the hook ",
                   hook_->spec(), " to ", next.hook);
  if (!options_.make_hook) {
    return absl::FailedPreconditionError(absl::StrCat(
        change,
        ", and this program cannot make hooks while it runs: set "
        "make_hook in its options, or propose the plan for the next "
        "generation"));
  }
  absl::StatusOr<std::unique_ptr<Hook>> made = options_.make_hook(next);
  absl::StatusOr<std::unique_ptr<Averager>> made_averager =
      std::unique_ptr<Averager>();
  if (options_.make_averager) made_averager = options_.make_averager(next);
  // These may be this rank's alone.
  Keep(made.status());
  Keep(made_averager.status());
  COXSWAIN_RETURN_IF_ERROR(status_);
  std::unique_ptr<Hook> hook = *std::move(made);
  std::unique_ptr<Averager> averager = *std::move(made_averager);
  if (hook->needs_averager() && averager == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        change,
        ", which needs an averager, and this program cannot make one "
        "while it runs: set make_averager in its options, or propose "
        "the plan for the next generation"));
  }
  COXSWAIN_RETURN_IF_ERROR(
      CheckPlan(options_, next, communicator_->size(), *hook, averager.get()));
  const bool carry = next.terms.hook_state == schedule::HookStatePolicy::kCarry;
  const absl::Status changed =
      ReplaceHook(std::move(hook), std::move(averager), carry);
  if (changed.ok() || !carry) return changed;
  return absl::Status(
      changed.code(),
      absl::StrCat(change,
                   ", which cannot take over its state: ", changed.message(),
                   "; propose it with hook_state=reset to begin without"));
}

absl::Status DistributedDataParallel::ReplaceHook(
    std::unique_ptr<Hook> hook, std::unique_ptr<Averager> averager,
    bool carry) {
  COXSWAIN_RETURN_IF_ERROR(AverageParameters());
  HookOwner owner;
  owner.hook = &hook_;
  owner.averager = &averager_;
  owner.paired = &paired_hook_;
  owner.reducer = reducer_.get();
  owner.communicator = communicator_;
  owner.timeout = options_.reducer.timeout;
  owner.keep = [this](const absl::Status& status) {
    Keep(status);
    return status_;
  };
  owner.configure = [this]() -> absl::Status {
    averager_due_ = false;
    COXSWAIN_RETURN_IF_ERROR(
        Guarded("moving the gradients", [this] { PointGradients(); }));
    return ConfigureAverager();
  };
  return ChangeHookAndAverager(owner, std::move(hook), std::move(averager),
                               carry);
}

void DistributedDataParallel::KeepShared(const absl::Status& status) {
  // The others come to it as well, and may still need the communicator to.
  if (status_.ok()) status_ = status;
}

}  // namespace coxswain::torch
