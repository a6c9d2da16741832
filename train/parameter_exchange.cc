#include "train/parameter_exchange.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/reduce/gradient_statistics.h"
#include "client/reduce/planned_step.h"
#include "client/reduce/step_report.h"
#include "hooks/registry/planned_hook.h"
#include "train/trained_model.h"

namespace coxswain {
absl::StatusOr<std::unique_ptr<ParameterExchange>> ParameterExchange::Create(
    const Options& options, const std::vector<TrainedParameter>& parameters,
    Communicator* communicator) {
  COXSWAIN_ASSIGN_OR_RETURN(
      Accumulator accumulator,
      Accumulator::Create(
          {options.plan, communicator->rank(), communicator->size()}));
  std::unique_ptr<ParameterExchange> exchange(
      new ParameterExchange(options, std::move(accumulator), communicator));
  COXSWAIN_RETURN_IF_ERROR(exchange->Connect(parameters));
  return exchange;
}

std::unique_ptr<Hook> ParameterExchange::TakeHook(
    std::unique_ptr<ParameterExchange> exchange) {
  // The reducer rolls a step in flight back before it is gone.
  std::unique_ptr<Hook> hook = std::move(exchange->hook_);
  exchange.reset();
  return hook;
}

absl::Status ParameterExchange::Connect(
    const std::vector<TrainedParameter>& parameters) {
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> specs,
                            DescribeTrained(parameters));
  TrainedMemory memory = MemoryOf(parameters);
  values_ = std::move(memory.values);
  gradients_ = std::move(memory.gradients);
  COXSWAIN_ASSIGN_OR_RETURN(hook_, MakePlannedHook(options_.plan));
  COXSWAIN_ASSIGN_OR_RETURN(averager_, MakePlannedAverager(options_.plan));
  COXSWAIN_RETURN_IF_ERROR(CheckPlan(options_.plan, *hook_, averager_.get()));
  ReducerOptions reducer = options_.reducer;
  coxswain::FollowPlan(options_.plan, communicator_.size(), &reducer);
  reducer.statistics |= options_.skip_non_finite;
  reducer.finds_non_finite =
      options_.skip_non_finite && options_.plan.terms.commit_vote;
  COXSWAIN_ASSIGN_OR_RETURN(
      reducer_,
      Reducer::Create(reducer, std::move(specs), hook_.get(), &communicator_));
  if (!options_.same_at_start) {
    COXSWAIN_RETURN_IF_ERROR(reducer_->BroadcastFromRoot(values_));
  }
  return ConfigureAverager();
}

absl::Status ParameterExchange::CheckPlan(const schedule::Plan& plan,
                                          const Hook& hook,
                                          const Averager* averager) const {
  if (options_.check_hook) COXSWAIN_RETURN_IF_ERROR(options_.check_hook(hook));
  COXSWAIN_RETURN_IF_ERROR(
      CheckAveragerFits(plan, communicator_.size(), hook, averager));
  return CheckTermsFit(plan, options_.reducer, options_.skip_non_finite, hook,
                       averager);
}

absl::Status ParameterExchange::Keep(const absl::Status& status) {
  if (status.ok() || !status_.ok()) return status_;
  // The peers may be waiting for this rank.
  reducer_->Abort(status);
  reducer_->Rollback();
  status_ = reducer_->status();
  return status_;
}

// ---- a micro-batch ----

absl::StatusOr<MicroBatch> ParameterExchange::Begin(
    const Accumulator::Begin& begin) {
  if (in_micro_) {
    return Keep(
        absl::FailedPreconditionError("a micro-batch begins within another "
                                      "one: call Step where the gradients "
                                      "of the last one have been returned"));
  }
  COXSWAIN_RETURN_IF_ERROR(FollowNextPlan());
  absl::StatusOr<MicroBatch> micro =
      accumulator_.BeginMicroBatch(schedule::kTrainStream, begin);
  COXSWAIN_RETURN_IF_ERROR(Keep(micro.status()));
  micro_ = *micro;
  in_micro_ = true;
  announced_ = false;
  ended_ = false;
  ready_.assign(gradients_.size(), false);
  return micro_;
}

absl::Status ParameterExchange::Ready(int parameter) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  const auto index = static_cast<size_t>(parameter);
  if (!in_micro_) {
    return Keep(
        absl::FailedPreconditionError("a gradient is ready outside of a "
                                      "micro-batch: GradientReady is for the "
                                      "function that Step is given"));
  }
  if (parameter < 0 || index >= gradients_.size()) {
    return Keep(absl::InvalidArgumentError(absl::StrCat(
        "there is no parameter ", parameter, " among ", gradients_.size())));
  }
  if (ready_[index]) {
    return Keep(absl::FailedPreconditionError(
        absl::StrCat("the gradient of \"", parameters()[index].name,
                     "\" is ready twice in one micro-batch")));
  }
  ready_[index] = true;
  if (micro_.exchange && !std::exchange(announced_, true)) {
    COXSWAIN_RETURN_IF_ERROR(
        BeginExchange(accumulator_.Sum(schedule::kTrainStream)));
  }
  Add(index);
  return micro_.exchange ? Mark(parameter) : absl::OkStatus();
}

void ParameterExchange::Add(size_t parameter) {
  const Span& gradient = gradients_[parameter];
  const Span sum = reducer_->GradientView(static_cast<int>(parameter));
  const bool first = micro_.micro == 0 || plan().terms.sync_each_batch;
  if (micro_.empty) {
    // It has no gradient.
    if (first && sum.count > 0) {
      std::memset(sum.data, 0, static_cast<size_t>(sum.bytes()));
    }
  } else if (!first) {
    AddScaled(gradient, micro_.loss_scale, sum.data);
  } else if (micro_.loss_scale == 1) {
    CopyElements(gradient, sum.data);
  } else {
    CopyScaled(gradient, micro_.loss_scale, sum.data);
  }
}

absl::Status ParameterExchange::Mark(int parameter) {
  // The header exchange tells the divisor; and with sync_each_batch it is the
  // sum of averages that is short.
  const bool here = !plan().terms.sync_each_batch &&
                    !plan().needs_header(communicator_.size());
  if (here && sum_.rescale != 1) {
    Scale(reducer_->GradientView(parameter), sum_.rescale);
  }
  return Keep(reducer_->MarkReady(parameter));
}

absl::Status ParameterExchange::End() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  for (size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i]) continue;
    COXSWAIN_RETURN_IF_ERROR(Ready(static_cast<int>(i)));
  }
  in_micro_ = false;
  in_window_ = !micro_.sync;
  return micro_.exchange ? FinishExchange() : absl::OkStatus();
}

// ---- the end of the data ----

absl::StatusOr<bool> ParameterExchange::Flush() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  const schedule::Terms& terms = plan().terms;
  if (terms.sync_each_batch && terms.tail == schedule::TailPolicy::kFlush &&
      in_window_) {
    // Its exchanges are over, and no decision has ended it.
    return Keep(absl::FailedPreconditionError(
        "the data ends in the middle of a window whose micro-batches were "
        "exchanged each (sync_each_batch), so there is no exchange left in "
        "which all ranks could decide its optimizer step: set end_of_data with "
        "the last micro-batch"));
  }
  const WindowSum sum = accumulator_.EndOfData(schedule::kTrainStream);
  if (sum.micro_batches == 0 && sum.exchanged == 0) return false;
  in_window_ = false;
  if (terms.tail == schedule::TailPolicy::kDrop) return false;
  COXSWAIN_RETURN_IF_ERROR(BeginExchange(sum));
  for (size_t i = 0; i < gradients_.size(); ++i) {
    COXSWAIN_RETURN_IF_ERROR(Mark(static_cast<int>(i)));
  }
  COXSWAIN_RETURN_IF_ERROR(FinishExchange());
  return true;
}

absl::StatusOr<bool> ParameterExchange::StepWithoutData() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (in_window_ || in_micro_) {
    return Keep(absl::FailedPreconditionError(
        "this rank takes part without data in the middle of a window: with "
        "uneven_data the plan's tail is to be flush or drop"));
  }
  COXSWAIN_RETURN_IF_ERROR(FollowNextPlan());
  const Accumulator before = accumulator_;
  COXSWAIN_RETURN_IF_ERROR(
      BeginExchange(accumulator_.StepWithoutData(schedule::kTrainStream)));
  COXSWAIN_RETURN_IF_ERROR(FinishExchange());
  const StepReport report = reducer_->report();
  // A step of no rank is none, as the coordinator has it. Where others had data
  // that is given up with the epoch, they have counted its window.
  if (report.ranks_with_data == 0) accumulator_ = before;
  return report.ranks_with_data > 0 && !report.ended;
}

}  // namespace coxswain
