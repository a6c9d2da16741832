// DistributedDataParallel's steps, from the declared micro-batch to the
// exchange that is announced.

#include <torch/utils.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/reduce/planned_step.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/ddp_internal.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"
#include "schedule/ticket.h"

namespace coxswain::torch {

using ::torch::Tensor;

absl::Status DistributedDataParallel::BeginEpoch(int64_t micro_batches) {
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("BeginEpoch"));
  COXSWAIN_RETURN_IF_ERROR(
      accumulator_.BeginEpoch(micro_batches, schedule::kTrainStream));
  ended_ = false;
  return absl::OkStatus();
}

MicroBatch DistributedDataParallel::Accumulate(
    const Accumulator::Begin& begin) {
  if (window_.open()) {
    Keep(absl::FailedPreconditionError(
        "Accumulate inside a window that DeclareWindow has declared as a "
        "whole: "
        "all its micro-batches are declared; end it by Synchronize, and "
        "FinishStep where it has sync"));
  }
  if (phase_ != Phase::kNone) {
    Keep(absl::FailedPreconditionError(
        "a micro-batch begins, but the one before it, which exchanged "
        "gradients, was not finished: call FinishStep"));
  }
  Keep(passes_.CheckDeclare());
  if (status_.ok()) Keep(FollowNextPlan());
  MicroBatch micro;
  micro.sync = micro.exchange = false;
  if (status_.ok()) {
    absl::StatusOr<MicroBatch> next =
        accumulator_.BeginMicroBatch(schedule::kTrainStream, begin);
    Keep(next.status());
    if (next.ok()) micro = *next;
  }
  passes_.Declare(micro);
  ended_ = false;
  step_due_ = false;
  if (status_.ok() && micro.exchange && micro.micro > 0) {
    // Slices are added up by the reducer.
    if (plan().terms.sync_each_batch && zero() == 0) SetAveragesAside();
  }
  if (options_.on_micro_batch) options_.on_micro_batch();
  return micro;
}

NoSyncScope DistributedDataParallel::NoSync() {
  if (no_sync_depth_ == 0) scope_mark_ = GraphMark::Now();
  return NoSyncScope(&no_sync_depth_);
}

absl::Status DistributedDataParallel::CheckForward(const Tensor& loss) const {
  const bool in_scope = passes_.declared() || no_sync_depth_ > 0;
  if (!options_.forward_in_scope || !in_scope) return absl::OkStatus();
  const GraphMark& mark = passes_.declared() ? passes_.since() : scope_mark_;
  bool before = false;
  COXSWAIN_RETURN_IF_ERROR(Guarded(
      "reading the graph", [&] { before = ForwardRanBefore(mark, loss); }));
  if (!before) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the forward of this loss ran before its ",
      passes_.declared() ? "micro-batch was declared: call Accumulate before "
                           "the forward"
                         : "NoSync scope was opened: open it before the "
                           "forward",
      "; where forwards are meant to run ahead, clear forward_in_scope"));
}

absl::Status DistributedDataParallel::Backward(const Tensor& loss) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (window_.open()) {
    Keep(absl::FailedPreconditionError(
        "Backward inside a window that DeclareWindow has declared as a whole: "
        "run loss.backward(), between BeginLastPass and EndLastPass if it is "
        "the last one of its parameters"));
    return status_;
  }
  const bool exchanges = this->exchanges();
  if (exchanges) Keep(CheckExchange());
  if (!passes_.empty()) Keep(CheckForward(loss));
  COXSWAIN_RETURN_IF_ERROR(status_);
  COXSWAIN_RETURN_IF_ERROR(FollowNextPlan());
  // Its loss may well be no number: a mean over nothing.
  if (passes_.empty()) return RunWithoutPass();
  passes_.BeginPass();
  if (exchanges && options_.reducer.find_unused_parameters &&
      static_graph_ == nullptr) {
    Keep(MarkUnreached(loss));
  }
  if (status_.ok()) Keep(Guarded("backward", [&] { loss.backward(); }));
  COXSWAIN_RETURN_IF_ERROR(Synchronize());
  return exchanges ? FinishStep() : status_;
}

absl::Status DistributedDataParallel::Backward(const Tensor& loss,
                                               const MicroBatch& micro) {
  if (micro.empty || micro.loss_scale == 1) return Backward(loss);
  Tensor scaled;
  Keep(Guarded("scaling the loss", [&] { scaled = loss * micro.loss_scale; }));
  COXSWAIN_RETURN_IF_ERROR(status_);
  return Backward(scaled);
}

absl::Status DistributedDataParallel::SetGradientScale(double scale) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (!(scale > 0) || std::isinf(scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a gradient scale of ", scale,
                     ": gradients are divided by it, so that it is finite and "
                     "above 0"));
  }
  if (scale == gradient_scale_) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("SetGradientScale"));
  COXSWAIN_RETURN_IF_ERROR(CheckNothingLocal());
  gradient_scale_ = scale;
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::Synchronize() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (window_.open()) return SynchronizeWindow();
  // A pass may have reached no parameter, and so not have been noticed.
  if (passes_.pass_due()) passes_.BeginPass();
  passes_.EndPass();
  if (!exchanges() || phase_ == Phase::kAveraged) return status_;
  Keep(passes_.CheckNotSpent());
  COXSWAIN_RETURN_IF_ERROR(status_);
  // The caller may leave the backward of an empty micro-batch out.
  const bool of_pass = !passes_.empty() || phase_ != Phase::kNone;
  if (phase_ == Phase::kRunning) {
    Keep(absl::FailedPreconditionError(
        "the backward pass that exchanges gradients did not run to its end"));
  }
  if (phase_ == Phase::kNone) Keep(BeginStep());
  FinishExchange(of_pass);
  return status_;
}

absl::Status DistributedDataParallel::CheckExchange() const {
  COXSWAIN_RETURN_IF_ERROR(passes_.CheckNotSpent());
  return CheckUndeclared();
}

absl::Status DistributedDataParallel::RunWithoutPass() {
  passes_.BeginPass();
  passes_.EndPass();
  if (!exchanges()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const WindowSum sum, SumToExchange());
  Keep(BeginReducerStep(sum));
  FinishExchange(/*of_pass=*/false);
  COXSWAIN_RETURN_IF_ERROR(status_);
  return FinishStep();
}

absl::Status DistributedDataParallel::FailMicroBatch(const absl::Status& why) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  const bool early =
      window_.open() ? phase_ != Phase::kAveraged : phase_ == Phase::kNone;
  if (!early || why.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "FailMicroBatch is for a micro-batch whose gradients are not being "
        "exchanged yet, or a declared window before Synchronize, and needs an "
        "error; got ",
        why.ToString()));
  }
  if (!can_skip()) {
    Keep(absl::Status(why.code(),
                      absl::StrCat("a micro-batch failed, and without a gate "
                                   "and enforcement=audit or strict the other "
                                   "ranks cannot skip it: ",
                                   why.message())));
    return status_;
  }
  if (window_.open()) return FailWindow(why);
  if (exchanges()) COXSWAIN_RETURN_IF_ERROR(CheckExchange());
  COXSWAIN_RETURN_IF_ERROR(FollowNextPlan());
  passes_.Fail(why);
  return RunWithoutPass();
}

absl::StatusOr<bool> DistributedDataParallel::Flush() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (passes_.pass_due() || passes_.exchange_due() || window_.open()) {
    return absl::FailedPreconditionError(
        "the data ends after a micro-batch was declared, and before its "
        "backward, or the Synchronize of a declared window: run it, or give "
        "the window up by DropWindow");
  }
  const schedule::Terms& terms = plan().terms;
  if (terms.sync_each_batch && terms.tail == schedule::TailPolicy::kFlush &&
      passes_.in_window()) {
    // Its exchanges are over, and no decision has ended it.
    return absl::FailedPreconditionError(
        "the data ends in the middle of a window whose micro-batches were "
        "exchanged each (sync_each_batch), so there is no exchange left in "
        "which all ranks could decide its optimizer step: set end_of_data with "
        "the last micro-batch, or their number in BeginEpoch; or give the "
        "window up by DropWindow");
  }
  const WindowSum sum = accumulator_.EndOfData(schedule::kTrainStream);
  if (sum.micro_batches == 0 && sum.exchanged == 0) return false;
  if (terms.tail == schedule::TailPolicy::kDrop) {
    COXSWAIN_RETURN_IF_ERROR(DropWindow());
    return false;
  }
  passes_.DeclareTail();
  Keep(BeginReducerStep(sum));
  FinishExchange(/*of_pass=*/false);
  COXSWAIN_RETURN_IF_ERROR(FinishStep());
  return true;
}

absl::Status DistributedDataParallel::DropWindow() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (phase_ != Phase::kNone) {
    return absl::FailedPreconditionError(
        "DropWindow in the middle of an exchange; call Synchronize and "
        "FinishStep first");
  }
  accumulator_.DropWindow();
  passes_.DropWindow();
  window_.End();
  step_due_ = false;
  Keep(Guarded("clearing the gradients", [this] { ClearGradients(); }));
  return status_;
}

absl::Status DistributedDataParallel::CheckNothingLocal() const {
  bool local = passes_.in_window() || passes_.pass_due();
  for (const auto& parameter : parameters_) local |= parameter->used;
  if (!local) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this rank has summed up gradients and not exchanged them, which would "
      "be lost, or make the ranks drift apart: step where sync is true, end a "
      "window of Accumulate by Flush or DropWindow, and what was summed up in "
      "NoSync scopes by Synchronize and FinishStep");
}

absl::StatusOr<bool> DistributedDataParallel::StepWithoutData() {
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("StepWithoutData"));
  const schedule::UnevenData uneven = plan().terms.uneven_data;
  if (uneven == schedule::UnevenData::kRefuse) {
    return absl::FailedPreconditionError(
        "StepWithoutData needs ReducerOptions::uneven_inputs, or a plan with "
        "uneven_data=wait_for_all or end_at_first, on all ranks");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckNothingLocal());
  COXSWAIN_RETURN_IF_ERROR(FollowNextPlan());
  if (options_.reducer.find_unused_parameters) {
    Keep(Guarded("keeping the gradients", [this] {
      for (const auto& parameter : parameters_) parameter->gradient.SetAside();
    }));
  }
  const Accumulator before = accumulator_;
  if (status_.ok()) {
    Keep(
        BeginReducerStep(accumulator_.StepWithoutData(schedule::kTrainStream)));
  }
  FinishExchange(/*of_pass=*/false);
  COXSWAIN_RETURN_IF_ERROR(status_);
  const StepReport report = reducer_->report();
  const bool more = report.ranks_with_data > 0 && !report.ended;
  // A step of no rank is none, as the coordinator has it. Where others had data
  // that is given up with the epoch, they have counted its window.
  if (report.ranks_with_data == 0) accumulator_ = before;
  COXSWAIN_RETURN_IF_ERROR(FinishStep());
  return more;
}

// ---- the exchange's announcement ----

absl::StatusOr<WindowSum> DistributedDataParallel::SumToExchange() {
  if (passes_.declared()) return accumulator_.Sum(schedule::kTrainStream);
  COXSWAIN_RETURN_IF_ERROR(CheckUndeclared());
  // What is not declared is counted here.
  WindowSum sum = accumulator_.StepWithoutData(schedule::kTrainStream);
  sum.micro_batches = sum.window > 1 ? passes_.passes() : 1;
  sum.weight = 1;
  sum.divisor = 1;
  sum.end_of_data = false;
  return sum;
}

absl::Status DistributedDataParallel::CheckUndeclared() const {
  if (passes_.declared()) return absl::OkStatus();
  if (plan().terms.weighting != schedule::Weighting::kMean) {
    return absl::FailedPreconditionError(
        "the plan weighs micro-batches, and this one's weight is not known: "
        "declare each by Accumulate({weight}) before its forward");
  }
  if (plan().terms.sync_each_batch && plan().accumulation_steps > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the plan exchanges each of a window's ", plan().accumulation_steps,
        " micro-batches (sync_each_batch), and where this one stands in its "
        "window is not known: declare each by Accumulate() before its "
        "forward"));
  }
  return absl::OkStatus();
}

absl::StatusOr<schedule::Ticket> DistributedDataParallel::TicketOf(
    const WindowSum& sum) const {
  schedule::Ticket ticket = coxswain::TicketOf(sum);
  ticket.skip = passes_.failure();
  if (window_.open()) ticket.pipeline = pipeline_hash_;
  const int64_t every = plan().terms.checksum_every;
  const bool apart = averager_ != nullptr && averager_->diverged();
  if (options_.reducer.gate != nullptr && every > 0 && sum.step % every == 0 &&
      sum.exchanged == 0 && !apart) {
    COXSWAIN_ASSIGN_OR_RETURN(
        ticket.checksum, Checksum([](const ParameterSpec&) { return true; }));
    if (!options_.replicated_parameters.empty()) {
      COXSWAIN_ASSIGN_OR_RETURN(
          ticket.replicated_checksum, Checksum([this](const auto& spec) {
            return options_.replicated_parameters.count(spec.name) > 0;
          }));
    }
  }
  return ticket;
}

absl::StatusOr<uint64_t> DistributedDataParallel::Checksum(
    const std::function<bool(const ParameterSpec&)>& counts) const {
  uint32_t checksum = 0;
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading the parameters", [&] {
    const ::torch::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) {
      const auto index = static_cast<size_t>(parameter->index);
      if (!counts(reducer_->parameters()[index])) continue;
      // From a GPU they are copied; on the CPU nothing is.
      const Tensor dense = parameter->gradient.parameter().contiguous().cpu();
      const Span bytes = BytesOf(dense);
      checksum = Crc32c({static_cast<const char*>(bytes.data),
                         static_cast<size_t>(bytes.count)},
                        checksum);
    }
  }));
  return checksum;
}

absl::Status DistributedDataParallel::BeginReducerStep(const WindowSum& sum) {
  if (next_plan_ && sum.exchanged == 0) {
    return absl::FailedPreconditionError(
        "the plan has changed, which takes effect after the optimizer step: "
        "call AfterOptimizerStep after each, or StepOptimizer");
  }
  COXSWAIN_RETURN_IF_ERROR(CommitStep());
  COXSWAIN_ASSIGN_OR_RETURN(const schedule::Ticket ticket, TicketOf(sum));
  sum_ = sum;
  step_due_ = false;
  local_ = IsLocalStep(plan().terms, ticket, decided_, *hook_, averager_.get());
  meets_ = hook_->reach() == GradientReach::kAll ||
           (averager_ != nullptr && averager_->unites_next());
  const double divisor = weighs() ? sum.divisor / gradient_scale_ : sum.divisor;
  return reducer_->BeginStep(ticket, divisor, local_);
}

bool DistributedDataParallel::weighs() const {
  return plan().needs_header(communicator_->size());
}

double DistributedDataParallel::rescale() const {
  // The header exchange has the divisor.
  if (weighs()) return 1;
  // With sync_each_batch it is the sum of averages that is short.
  const double window = plan().terms.sync_each_batch ? 1 : sum_.rescale;
  return window / gradient_scale_;
}

}  // namespace coxswain::torch
