// DistributedDataParallel's changes of plan, between steps.

#include <torch/utils.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/averager_hooks.h"
#include "client/torch/ddp_options.h"
#include "client/torch/ddp_parameter.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

// Of an averager's state: per element its values at up to 8 bytes, several
// times over, and text.
int64_t MaxStateBytes(const std::vector<ParameterSpec>& parameters) {
  int64_t limit = 64 << 20;
  for (const ParameterSpec& parameter : parameters) {
    limit += 64 * parameter.count();
  }
  return limit;
}

}  // namespace

bool DistributedDataParallel::ChangesHook(const JobPlan& next) const {
  const std::string before = plan().hook.empty() ? hook_->spec() : plan().hook;
  return next.hook != before ||
         next.compression_start_step != plan().compression_start_step;
}

absl::Status DistributedDataParallel::FollowNextPlan() {
  if (!next_plan_ || passes_.in_window() || passes_.exchange_due() ||
      phase_ != Phase::kNone) {
    return status_;
  }
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  const JobPlan next = *std::exchange(next_plan_, std::nullopt);
  KeepShared(FollowPlan(next));
  return status_;
}

absl::Status DistributedDataParallel::FollowPlan(const JobPlan& next) {
  const bool other_hook = ChangesHook(next);
  COXSWAIN_RETURN_IF_ERROR(accumulator_.ChangePlan(next));
  COXSWAIN_RETURN_IF_ERROR(reducer_->ChangePlan(next));
  if (other_hook) return FollowHook(next);
  return CheckPlan(options_, next, communicator_->size(), *hook_,
                   averager_.get());
}

absl::Status DistributedDataParallel::FollowHook(const JobPlan& next) {
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
  const bool carry = next.terms.hook_state == HookStatePolicy::kCarry;
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
  std::optional<HookState> state;
  if (carry && averager_ != nullptr && averager != nullptr) {
    absl::StatusOr<HookState> gathered = GatherAveragerState(
        *averager_, *communicator_, MaxStateBytes(reducer_->parameters()),
        options_.reducer.timeout);
    Keep(gathered.status());
    COXSWAIN_RETURN_IF_ERROR(status_);
    state = *std::move(gathered);
  }
  std::unique_ptr<Hook> paired;
  if (hook->needs_averager()) paired = WithAverager(hook.get());
  COXSWAIN_RETURN_IF_ERROR(reducer_->ChangeHook(
      paired != nullptr ? paired.get() : hook.get(), carry));
  // The reducer has let go of the old ones.
  hook_ = std::move(hook);
  paired_hook_ = std::move(paired);
  averager_ = std::move(averager);
  averager_due_ = false;
  COXSWAIN_RETURN_IF_ERROR(
      Guarded("moving the gradients", [this] { PointGradients(); }));
  COXSWAIN_RETURN_IF_ERROR(ConfigureAverager());
  if (!state || averager_ == nullptr) return absl::OkStatus();
  return averager_->LoadState(*state, communicator_->rank(),
                              communicator_->size());
}

void DistributedDataParallel::KeepShared(const absl::Status& status) {
  // The others come to it as well, and may still need the communicator to.
  if (status_.ok()) status_ = status;
}

}  // namespace coxswain::torch
