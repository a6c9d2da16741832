// ParameterExchange's changes of the plan, and with it of the hook and the
// averager.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/reduce/averager_change.h"
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
  HookOwner owner;
  owner.hook = &hook_;
  owner.averager = &averager_;
  owner.paired = &paired_hook_;
  owner.reducer = reducer_.get();
  owner.communicator = &communicator_;
  owner.timeout = options_.reducer.timeout;
  owner.keep = [this](const absl::Status& status) { return Keep(status); };
  owner.configure = [this] { return ConfigureAverager(); };
  return ChangeHookAndAverager(owner, std::move(hook), std::move(averager),
                               carry);
}

}  // namespace coxswain
