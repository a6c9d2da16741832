// The part of Reducer that ends a step: what all ranks do with it.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/reduce/reducer.h"

namespace coxswain {

absl::StatusOr<StepDecision> Reducer::Decide(const StepVote& vote) {
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(status_);
    if (state_ != State::kExchanged) {
      return absl::FailedPreconditionError(
          "there is no exchanged step to decide on; call Finish first");
    }
  }
  const absl::Time begun = options_.clock->Now();
  absl::StatusOr<StepDecision> decision = DecideOnce(vote);
  if (!decision.ok()) {
    (void)Fail(decision.status());
    EndStep();
    return status();
  }
  MutexLock lock(&mutex_);
  totals_.in_gate += options_.clock->Now() - begun;
  return decision;
}

absl::StatusOr<StepDecision> Reducer::DecideOnce(const StepVote& vote) {
  {
    MutexLock lock(&mutex_);
    if (decision_) return *decision_;
  }
  StepDecision decision;
  decision.commit = vote.commit;
  decision.reason = vote.reason;
  if (options_.gate != nullptr) {
    absl::StatusOr<StepDecision> answer = options_.gate->Decide(vote);
    if (!answer.ok()) return WithPrefix("decision: ", answer.status());
    decision = *std::move(answer);
  }
  MutexLock lock(&mutex_);
  decision_ = decision;
  return decision;
}

absl::Status Reducer::CheckCommit() const {
  if (state_ != State::kExchanged) {
    return absl::FailedPreconditionError(
        "there is no exchanged step to commit; call Finish first");
  }
  if (report_.empty) {
    return absl::FailedPreconditionError(
        "no rank had data for this step; roll it back");
  }
  if (!decision_) {
    if (options_.gate == nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the step has not been decided on; call Decide first");
  }
  if (decision_->commit) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "all ranks skip this step (", decision_->reason, "); roll it back"));
}

absl::Status Reducer::Commit() {
  if (const absl::Status broken = status(); !broken.ok()) {
    EndStep();
    return broken;
  }
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(CheckCommit());
    state_ = State::kIdle;
  }
  const absl::Status status = hook_->Commit();
  if (!status.ok()) {
    hook_->Rollback();
    return Fail(WithPrefix("hook commit: ", status));
  }
  return Rebuild();
}

void Reducer::Rollback() {
  const absl::Status fits = CheckRollback();
  if (!fits.ok()) (void)Fail(fits);
  if (EndStep()) (void)Rebuild();  // the reducer keeps the error
}

absl::Status Reducer::CheckRollback() const {
  MutexLock lock(&mutex_);
  if (state_ != State::kExchanged || options_.gate == nullptr) {
    return absl::OkStatus();
  }
  if (decision_ && (!decision_->commit || report_.empty)) {
    return absl::OkStatus();
  }
  return absl::AbortedError(
      decision_ ? "it was rolled back, but the other ranks commit it"
                : "it was rolled back before all ranks had decided to: vote "
                  "against it in Decide");
}

bool Reducer::EndStep() {
  State state;
  {
    MutexLock lock(&mutex_);
    state = std::exchange(state_, State::kIdle);
  }
  if (state == State::kIdle) return false;
  if (state == State::kCollecting) {
    Abort(absl::AbortedError(
        "the step was given up before all its gradients were exchanged"));
  }
  // A communicator that has been aborted ends every wait at once; where one
  // does not, the hook is still at work, and is rolled back at the very end.
  rollback_due_ = !WaitForExchangeThread(options_.after_abort());
  if (!rollback_due_) hook_->Rollback();
  return status().ok();
}

}  // namespace coxswain
