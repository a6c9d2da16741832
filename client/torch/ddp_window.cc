// DistributedDataParallel's windows that are declared as a whole: their
// exchange is announced first, and each gradient leaves after its last pass.

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/ddp_internal.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"
#include "schedule/ticket.h"

namespace coxswain::torch {

absl::Status DistributedDataParallel::CheckWindowOptions() const {
  const auto refuse = [](absl::string_view option, absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("DeclareWindow does not go with ", option, ": ", why));
  };
  if (plan().terms.sync_each_batch) {
    return refuse("sync_each_batch",
                  "a window's micro-batches are exchanged together; set "
                  "sync_each_batch=false");
  }
  if (options_.static_graph) {
    return refuse("static_graph",
                  "which parameters a pass uses differs from stage to stage; "
                  "leave it out");
  }
  if (options_.overlapped_optimizer) {
    return refuse("overlapped_optimizer",
                  "it would step parameters while other passes of the window "
                  "still run; leave it out, and call StepOptimizer");
  }
  if (zero() == 2 && !options_.force_zero) {
    return refuse("zero=2",
                  "the gradients of a window are summed up whole on each rank "
                  "until their last passes, so that it would save nothing; set "
                  "zero=1, or force_zero, with which it runs all the same");
  }
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::CheckDeclareWindow() const {
  COXSWAIN_RETURN_IF_ERROR(CheckWindowOptions());
  if (phase_ != Phase::kNone || window_.open()) {
    return absl::FailedPreconditionError(
        "a window is declared, but the one before it was not finished: call "
        "Synchronize after its passes, and FinishStep where it has sync");
  }
  COXSWAIN_RETURN_IF_ERROR(passes_.CheckDeclare());
  if (no_sync_depth_ > 0) {
    return absl::FailedPreconditionError(
        "DeclareWindow in a NoSync scope: the passes of a declared window add "
        "up locally by themselves, until BeginLastPass");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<MicroBatch>> DistributedDataParallel::DeclareWindow(
    absl::Span<const Accumulator::Begin> micro_batches) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  Keep(CheckDeclareWindow());
  COXSWAIN_RETURN_IF_ERROR(status_);
  COXSWAIN_RETURN_IF_ERROR(FollowNextPlan());
  absl::StatusOr<std::vector<MicroBatch>> declared =
      accumulator_.BeginWindow(schedule::kTrainStream, micro_batches);
  Keep(declared.status());
  COXSWAIN_RETURN_IF_ERROR(status_);
  const bool exchanges = declared->back().exchange;
  passes_.DeclareWindow(declared->back());
  window_.Begin(exchanges, parameters_.size());
  ended_ = false;
  step_due_ = false;
  for (size_t i = 0; options_.on_micro_batch && i < declared->size(); ++i) {
    options_.on_micro_batch();
  }
  if (!exchanges) return declared;
  Keep(BeginReducerStep(accumulator_.Sum(schedule::kTrainStream)));
  COXSWAIN_RETURN_IF_ERROR(status_);
  phase_ = Phase::kBegun;
  return declared;
}

absl::Status DistributedDataParallel::BeginLastPass(
    const std::vector<int>& parameters) {
  if (status_.ok()) {
    Keep(window_.BeginLastPass(parameters, reducer_->parameters()));
  }
  return status_;
}

absl::Status DistributedDataParallel::EndLastPass() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  const absl::StatusOr<std::vector<int>> parameters = window_.EndLastPass();
  Keep(parameters.status());
  if (!status_.ok() || !window_.exchanges()) return status_;
  const std::vector<int> unmarked = reducer_->Unmarked();
  const std::set<int> due(unmarked.begin(), unmarked.end());
  for (const int parameter : *parameters) {
    if (!status_.ok() || due.count(parameter) == 0) continue;
    // A gradient that was added without autograd has had no hook.
    Parameter& marked = *parameters_[static_cast<size_t>(parameter)];
    marked.used = marked.used || marked.gradient.defined();
    Keep(MarkOrZeros(parameter));
  }
  return status_;
}

absl::Status DistributedDataParallel::OnWindowGradient(Parameter& parameter) {
  const DeclaredWindow::Gradient is = window_.Arrived(parameter.index);
  if (phase_ == Phase::kAveraged || is == DeclaredWindow::Gradient::kComplete) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a backward pass adds to the gradient of \"",
        reducer_->parameters()[static_cast<size_t>(parameter.index)].name,
        "\" after its last pass in the declared window: the pass between "
        "BeginLastPass and EndLastPass is the last one that reaches it"));
  }
  if (is == DeclaredWindow::Gradient::kLast && window_.exchanges()) {
    const bool leaves = !options_.may_leave || options_.may_leave();
    return leaves ? Mark(parameter.index) : absl::OkStatus();
  }
  return Guarded("adding up gradients", [&] { parameter.gradient.Adopt(); });
}

absl::Status DistributedDataParallel::SynchronizeWindow() {
  if (phase_ == Phase::kAveraged) return status_;
  Keep(window_.CheckNoLastPass());
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (!window_.exchanges()) {
    window_.End();
    return status_;
  }
  FinishExchange(/*of_pass=*/false);
  return status_;
}

absl::Status DistributedDataParallel::FailWindow(const absl::Status& why) {
  // Other ranks have this one's ticket by now, and it did not ask for a skip.
  if (window_.exchanges() && !local_ && !plan().terms.commit_vote) {
    Keep(absl::Status(
        why.code(),
        absl::StrCat("a micro-batch of a declared window failed, whose "
                     "exchange was announced before, and without votes the "
                     "other ranks cannot skip it (commit_vote=true): ",
                     why.message())));
    return status_;
  }
  passes_.Fail(why);
  window_.Fail();
  COXSWAIN_RETURN_IF_ERROR(SynchronizeWindow());
  return phase_ == Phase::kAveraged ? FinishStep() : status_;
}

}  // namespace coxswain::torch
