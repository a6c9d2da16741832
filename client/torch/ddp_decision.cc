// DistributedDataParallel's end of a step: what all ranks decide, and what
// follows from it for the hook, the gradients and the optimizer.

#include <torch/utils.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/reduce/planned_step.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/ddp_internal.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"
#include "schedule/ticket.h"

namespace coxswain::torch {

using ::torch::Tensor;

bool DistributedDataParallel::can_skip() const {
  return options_.reducer.gate != nullptr &&
         plan().terms.enforcement != schedule::Enforcement::kOff;
}

absl::Status DistributedDataParallel::CheckVote(bool apply) const {
  if (apply) return absl::OkStatus();
  if (options_.overlapped_optimizer) {
    return absl::FailedPreconditionError(
        "the overlapped optimizers have taken this step already, so it cannot "
        "be skipped; to decide after the exchange, step with an optimizer of "
        "your own");
  }
  if (!can_skip() || plan().terms.commit_vote) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "FinishStep(false) is a vote, and the plan counts none, so the other "
      "ranks might apply the step: set commit_vote=true in the plan's terms");
}

std::string DistributedDataParallel::NonFinite() const {
  const std::string rank = options_.rank_name.empty()
                               ? absl::StrCat("rank ", communicator_->rank())
                               : options_.rank_name;
  std::string found = WhyNotFinite(
      *hook_, *reducer_, rank, [this](size_t i) { return AverageIsFinite(i); });
  if (!found.empty()) return found;
  // Which other ranks count, whose own may be finite.
  const std::vector<ParameterSpec>& parameters = reducer_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    if (options_.replicated_parameters.count(name) == 0 ||
        options_.reducer.buckets.uncounted_parameters.count(name) == 0 ||
        AverageIsFinite(i)) {
      continue;
    }
    return absl::StrCat("not finite: the average of \"", name,
                        "\", which each rank along tp has, as ", rank,
                        " sees it");
  }
  return "";
}

bool DistributedDataParallel::AverageIsFinite(size_t parameter) const {
  if (zero() > 0) return OwnSliceIsFinite(static_cast<int>(parameter));
  bool finite = true;
  (void)Guarded("looking for it", [&] {
    const Tensor average = parameters_[parameter]->gradient.parameter().grad();
    finite = !average.defined() || average.isfinite().all().item<bool>();
  });
  return finite;
}

schedule::Vote DistributedDataParallel::VoteOf(bool apply,
                                               absl::string_view why) const {
  schedule::Vote vote;
  vote.commit = apply;
  if (!apply) {
    vote.reason =
        std::string(why.empty() ? "the program does not apply it" : why);
  }
  if (!options_.skip_non_finite || reducer_->report().empty) return vote;
  const std::string found = NonFinite();
  if (found.empty()) return vote;
  vote.commit = false;
  absl::StrAppend(&vote.reason, vote.reason.empty() ? "" : "; ", found);
  return vote;
}

absl::Status DistributedDataParallel::FinishStep(bool apply,
                                                 absl::string_view why) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (phase_ != Phase::kAveraged) {
    return absl::FailedPreconditionError(
        "there is no exchanged step to finish; call Synchronize first");
  }
  if (!local_) COXSWAIN_RETURN_IF_ERROR(CheckVote(apply));
  const bool failed =
      (local_ && !passes_.failure().empty()) || window_.failed();
  const schedule::Vote vote =
      failed ? VoteOf(/*apply=*/false, passes_.failure()) : VoteOf(apply, why);
  const double clip_scale = reducer_->report().clip_scale;
  absl::StatusOr<schedule::Decision> decision =
      reducer_->Decide(local_ ? schedule::Vote() : vote,
                       /*unanimous=*/!plan().terms.commit_vote);
  Keep(decision.status());
  phase_ = Phase::kNone;
  window_.End();
  COXSWAIN_RETURN_IF_ERROR(status_);
  ++decided_;
  // By the norm that came with it.
  const bool clipped =
      zero() == 0 && reducer_->report().clip_scale != clip_scale;
  if (decision->commit && clipped) {
    Keep(Guarded("clipping", [this] { TakeClipped(); }));
  }
  Keep(EndExchange(*decision));
  if (local_ && !vote.commit && status_.ok()) {
    Keep(SkipLocal(vote.reason, &*decision));
  }
  COXSWAIN_RETURN_IF_ERROR(status_);
  NoteDecision(*decision);
  passes_.EndExchange();
  if (ended_) {
    // The rest of its data is given up, too.
    (void)accumulator_.EndOfData(schedule::kTrainStream);
    passes_.DropWindow();
  }
  return passes_.in_window() ? status_ : EndWindow();
}

absl::Status DistributedDataParallel::EndExchange(
    const schedule::Decision& decision) {
  const bool empty = reducer_->report().empty;
  ended_ = reducer_->report().ended;
  if (decision.commit && !empty) {
    COXSWAIN_RETURN_IF_ERROR(CheckAverager());
    commit_due_ = commits_later();
    if (!commit_due_) COXSWAIN_RETURN_IF_ERROR(reducer_->Commit());
  } else {
    reducer_->Rollback();
    COXSWAIN_RETURN_IF_ERROR(reducer_->status());
  }
  COXSWAIN_RETURN_IF_ERROR(Guarded("moving the gradients", [&] {
    if (layout_version_ != reducer_->layout_version()) PointGradients();
    if (ended_ || AllWereEmpty() || (!decision.commit && !empty)) {
      ClearGradients();
    } else {
      AddAverages();
    }
  }));
  return empty || !meets_ ? absl::OkStatus() : BroadcastBuffers();
}

absl::Status DistributedDataParallel::SkipLocal(const std::string& why,
                                                schedule::Decision* decision) {
  decision->commit = false;
  decision->reason =
      absl::StrCat("rank ", communicator_->rank(), ", in a local step: ", why);
  COXSWAIN_RETURN_IF_ERROR(
      Guarded("clearing the gradients", [this] { ClearGradients(); }));
  // The averager counts the step, and the hook with it.
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  averager_due_ = false;
  return WithValues([this](const std::vector<Span>& values) {
    return averager_->AfterOptimizerStep(values);
  });
}

bool DistributedDataParallel::commits_later() const {
  const bool skips = sum_.exchanged > 0 && !decision_.commit;
  return options_.commit_with_optimizer && !passes_.in_window() && !skips;
}

absl::Status DistributedDataParallel::CommitStep() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (!std::exchange(commit_due_, false)) return absl::OkStatus();
  Keep(reducer_->Commit());
  if (status_.ok() && layout_version_ != reducer_->layout_version()) {
    Keep(Guarded("moving the gradients", [this] { PointGradients(); }));
  }
  return status_;
}

void DistributedDataParallel::NoteDecision(const schedule::Decision& decision) {
  if (decision.plan) next_plan_ = decision.plan;
  std::vector<schedule::Newcomer> newcomers;
  if (sum_.exchanged > 0) newcomers = std::move(decision_.newcomers);
  newcomers.insert(newcomers.end(), decision.newcomers.begin(),
                   decision.newcomers.end());
  if (sum_.exchanged == 0 || decision_.commit) {
    decision_ = decision;
  } else {
    NoteAfterSkip(decision);
  }
  decision_.newcomers = std::move(newcomers);
  if (AllWereEmpty()) {
    decision_.commit = false;
    decision_.reason = "all micro-batches of the step had weight 0";
  } else if (reducer_->report().empty) {
    // A round without data, that was decided by no coordinator.
    decision_.checkpoint.clear();
  }
}

bool DistributedDataParallel::AllWereEmpty() const {
  const StepReport report = reducer_->report();
  return report.empty && report.ranks_with_data > 0 && !report.ended;
}

void DistributedDataParallel::NoteAfterSkip(
    const schedule::Decision& decision) {
  // A micro-batch of this window was skipped before.
  if (!decision.commit) {
    absl::StrAppend(&decision_.reason, "; ", decision.reason);
  }
  decision_.stop = decision.stop;
  decision_.plan = decision.plan;
  decision_.regroup = decision.regroup;
  decision_.checkpoint = decision.checkpoint;
}

absl::Status DistributedDataParallel::EndWindow() {
  const bool empty = reducer_->report().empty;
  step_due_ = decision_.commit && !empty;
  if (plan().terms.sync_each_batch) {
    Keep(Guarded("ending the window", [this] {
      if (!decision_.commit) ClearGradients();
      const ::torch::NoGradGuard no_grad;
      for (Tensor& slice : OwnSlices()) {
        if (sum_.rescale != 1) slice.mul_(sum_.rescale);
      }
      for (const auto& parameter : parameters_) {
        Tensor gradient = parameter->gradient.parameter().grad();
        if (gradient.defined() && sum_.rescale != 1) {
          gradient.mul_(sum_.rescale);
        }
      }
    }));
  }
  COXSWAIN_RETURN_IF_ERROR(status_);
  const bool may_average = averager_ != nullptr || options_.make_averager;
  if (next_plan_ && step_due_ && may_average && ChangesHook(*next_plan_)) {
    return absl::OkStatus();  // the averager counts this step first
  }
  if (commit_due_) return absl::OkStatus();
  return FollowNextPlan();
}

void DistributedDataParallel::ClearGradients() {
  const ::torch::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) {
    parameter->used = false;
    parameter->averages = Tensor();
    Tensor gradient = parameter->gradient.parameter().grad();
    if (gradient.defined()) gradient.zero_();
  }
}

void DistributedDataParallel::SetAveragesAside() {
  Keep(Guarded("setting averages aside", [this] {
    const ::torch::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) {
      Tensor gradient = parameter->gradient.parameter().grad();
      if (!gradient.defined()) continue;
      parameter->averages = gradient.detach().clone();
      gradient.zero_();
    }
  }));
}

void DistributedDataParallel::AddAverages() {
  const ::torch::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) {
    const Tensor averages = std::exchange(parameter->averages, Tensor());
    if (!averages.defined()) continue;
    Tensor& gradient = parameter->gradient.parameter().mutable_grad();
    if (gradient.defined()) {
      gradient.add_(averages);
    } else {
      gradient = averages;
    }
  }
}

absl::StatusOr<bool> DistributedDataParallel::StepOptimizer(
    ::torch::optim::Optimizer& optimizer) {
  if (zero() > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "StepOptimizer needs whole gradients, and with zero=", zero(),
        " a rank has those of its slices only: make a ShardedOptimizer of this "
        "optimizer, and call its Step"));
  }
  return StepBy([&]() -> absl::Status {
    return Guarded("optimizer step", [&] {
      optimizer.step();
      optimizer.zero_grad();
    });
  });
}

absl::StatusOr<bool> DistributedDataParallel::StepBy(
    const std::function<absl::Status()>& step) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (options_.overlapped_optimizer) {
    return absl::FailedPreconditionError(
        "the overlapped optimizers step by themselves: leave StepOptimizer "
        "out");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("StepOptimizer"));
  if (ended_) return false;
  if (passes_.declared()) {
    COXSWAIN_RETURN_IF_ERROR(
        accumulator_.CheckOptimizerStep(schedule::kTrainStream));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckNothingLocal());
  if (skipped()) return false;
  if (!std::exchange(step_due_, false)) {
    return absl::FailedPreconditionError(
        "an optimizer step without gradients that were exchanged since the "
        "last one: call it once after each Backward whose micro-batch has "
        "sync");
  }
  const absl::Status stepped = step();
  if (stepped.ok()) ++optimizer_steps_;
  Keep(stepped);
  COXSWAIN_RETURN_IF_ERROR(AfterOptimizerStep());
  return true;
}

absl::Status DistributedDataParallel::CheckAverager() {
  if (std::exchange(averager_due_, averager_ != nullptr)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the averager ", averager_->spec(),
                     " was not called after the step before this one; call "
                     "AfterOptimizerStep after each optimizer step"));
  }
  if (!hook_->needs_averager() || hook_->step() == averager_->step()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the hook ", hook_->spec(), " has counted ", hook_->step(),
      " steps and its averager ", averager_->step(),
      ", so they would not change over to local steps together; load the "
      "states of both from the same checkpoint"));
}

}  // namespace coxswain::torch
