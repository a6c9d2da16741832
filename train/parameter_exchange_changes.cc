// ParameterExchange's changes of the plan, and with it of the hook and the
// averager.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/reduce/averager_change.h"
#include "client/reduce/hook_state.h"
#include "hooks/registry/planned_hook.h"
#include "train/parameter_exchange.h"

namespace coxswain {

absl::Status ParameterExchange::ConfigureAverager() {
  if (averager_ == nullptr) return absl::OkStatus();
  return averager_->Configure(parameters(), values_, communicator_);
}

absl::Status ParameterExchange::FollowNextPlan() {
  if (!status_.ok() || !next_plan_ || in_window_) return status_;
  const schedule::Plan next = *std::exchange(next_plan_, std::nullopt);
  const absl::Status followed = FollowPlan(next);
  // The others come to it as well, and may still need the communicator to.
  if (status_.ok()) status_ = followed;
  return status_;
}

absl::Status ParameterExchange::FollowPlan(const schedule::Plan& next) {
  schedule::StepSettings before = plan();
  if (before.hook.empty()) before.hook = hook_->spec();
  const bool other_hook = !next.SameHook(before);
  COXSWAIN_RETURN_IF_ERROR(accumulator_.ChangePlan(next));
  COXSWAIN_RETURN_IF_ERROR(reducer_->ChangePlan(next));
  if (other_hook) return FollowHook(next);
  return CheckPlan(next, *hook_, averager_.get());
}

absl::Status ParameterExchange::FollowHook(const schedule::Plan& next) {
  absl::StatusOr<std::unique_ptr<Hook>> hook = MakePlannedHook(next);
  absl::StatusOr<std::unique_ptr<Averager>> averager =
      MakePlannedAverager(next);
  // These may be this rank's alone.
  COXSWAIN_RETURN_IF_ERROR(Keep(hook.status()));
  COXSWAIN_RETURN_IF_ERROR(Keep(averager.status()));
  COXSWAIN_RETURN_IF_ERROR(CheckPlan(next, **hook, averager->get()));
  const std::string change =
      absl::StrCat("version ", next.version, " of the plan changes the hook ",
                   hook_->spec(), " to ", next.hook);
  const bool carry = next.terms.hook_state == schedule::HookStatePolicy::kCarry;
  const absl::Status changed =
      ReplaceHook(*std::move(hook), *std::move(averager), carry);
  if (changed.ok() || !carry) return changed;
  return absl::Status(
      changed.code(),
      absl::StrCat(change,
                   ", which cannot take over its state: ", changed.message(),
                   "; propose it with hook_state=reset to begin without"));
}

absl::Status ParameterExchange::ReplaceHook(std::unique_ptr<Hook> hook,
                                            std::unique_ptr<Averager> averager,
                                            bool carry) {
  COXSWAIN_RETURN_IF_ERROR(AverageParameters());
  std::optional<HookState> state;
  if (carry && averager_ != nullptr && averager != nullptr) {
    absl::StatusOr<HookState> gathered = GatherAveragerState(
        *averager_, communicator_, parameters(), options_.reducer.timeout);
    COXSWAIN_RETURN_IF_ERROR(Keep(gathered.status()));
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
  COXSWAIN_RETURN_IF_ERROR(ConfigureAverager());
  if (!state || averager_ == nullptr) return absl::OkStatus();
  return averager_->LoadState(*state, communicator_.rank(),
                              communicator_.size());
}

}  // namespace coxswain
