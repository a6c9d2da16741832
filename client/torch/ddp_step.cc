// DistributedDataParallel's steps, from the declared micro-batch to the end of
// the exchange.

#include <torch/csrc/autograd/engine.h>
#include <torch/utils.h>

#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/autograd_graph.h"
#include "client/torch/ddp_parameter.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"
#include "client/torch/static_graph.h"

namespace coxswain::torch {

using ::torch::Tensor;

MicroBatch DistributedDataParallel::Accumulate() {
  if (exchange_due_ || phase_ != Phase::kNone) {
    Keep(absl::FailedPreconditionError(absl::StrCat(
        "a micro-batch begins, but the one before it, which ",
        phase_ == Phase::kNone
            ? "exchanges gradients, did not: run its backward outside NoSync, "
              "then Synchronize, or give the window up by DropWindow"
            : "exchanged gradients, was not finished: call FinishStep")));
  }
  absl::StatusOr<MicroBatch> micro = accumulator_.BeginMicroBatch();
  Keep(micro.status());
  if (!status_.ok()) {
    micro = MicroBatch();
    micro->sync = false;
  }
  sync_ = micro->sync;
  exchange_due_ = sync_;
  in_window_ = !sync_;
  spent_ = false;
  return *micro;
}

absl::Status DistributedDataParallel::CheckDeclared() const {
  if (!spent_ || no_sync_depth_ > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a backward pass exchanges gradients, but the micro-batch that was "
      "declared last has exchanged its own: call Accumulate before each "
      "forward, and where one has several losses add them up, or run all but "
      "the last one's backward in a NoSync scope");
}

absl::Status DistributedDataParallel::Backward(const Tensor& loss) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  COXSWAIN_RETURN_IF_ERROR(CheckDeclared());
  const bool exchanges = this->exchanges();
  if (exchanges && options_.reducer.find_unused_parameters &&
      static_graph_ == nullptr) {
    Keep(MarkUnreached(loss));
  }
  if (status_.ok()) Keep(Guarded("backward", [&] { loss.backward(); }));
  COXSWAIN_RETURN_IF_ERROR(Synchronize());
  return exchanges ? FinishStep() : status_;
}

absl::Status DistributedDataParallel::Synchronize() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (!exchanges() || phase_ == Phase::kAveraged) return status_;
  COXSWAIN_RETURN_IF_ERROR(CheckDeclared());
  if (phase_ == Phase::kRunning) {
    Keep(absl::FailedPreconditionError(
        "the backward pass that exchanges gradients did not run to its end"));
  }
  if (phase_ == Phase::kNone) Keep(BeginStep());
  FinishExchange(/*of_pass=*/true);
  return status_;
}

absl::Status DistributedDataParallel::FinishStep(bool apply) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (phase_ != Phase::kAveraged) {
    return absl::FailedPreconditionError(
        "there is no exchanged step to finish; call Synchronize first");
  }
  if (!apply && options_.overlapped_optimizer) {
    return absl::FailedPreconditionError(
        "the overlapped optimizers have taken this step already, so it cannot "
        "be skipped; to decide after the exchange, step with an optimizer of "
        "your own");
  }
  phase_ = Phase::kNone;
  // Of a declared micro-batch; passes that are not declared all exchange.
  if (std::exchange(exchange_due_, false)) spent_ = true;
  if (apply) {
    Keep(CheckAverager());
    if (status_.ok()) Keep(reducer_->Commit());
  } else {
    reducer_->Rollback();
    Keep(reducer_->status());
  }
  if (status_.ok() && layout_version_ != reducer_->layout_version()) {
    Keep(Guarded("moving the gradients", [this] { PointGradients(); }));
  }
  if (status_.ok()) Keep(BroadcastBuffers());
  return status_;
}

absl::Status DistributedDataParallel::CheckAverager() {
  if (std::exchange(averager_due_, averager_ != nullptr)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the step before this one was applied without telling the averager ",
        averager_->spec(),
        "; call AfterOptimizerStep after each optimizer step"));
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

absl::StatusOr<bool> DistributedDataParallel::Flush() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (exchange_due_) {
    return absl::FailedPreconditionError(
        "the data ends after a micro-batch was declared that exchanges, and "
        "before its backward: run it, or give the window up by DropWindow");
  }
  const Tail tail = accumulator_.EndOfData();
  in_window_ = false;
  if (tail.micros == 0) return false;
  Keep(Guarded("rescaling the gradients", [&] {
    const ::torch::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) {
      Tensor gradient = parameter->gradient.parameter().grad();
      if (gradient.defined()) gradient.mul_(tail.rescale);
    }
  }));
  sync_ = true;
  exchange_due_ = true;
  if (status_.ok()) Keep(reducer_->BeginStep());
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
  (void)accumulator_.EndOfData();
  in_window_ = false;
  if (std::exchange(exchange_due_, false)) spent_ = true;
  Keep(Guarded("clearing the gradients", [&] {
    const ::torch::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) {
      parameter->used = false;
      Tensor gradient = parameter->gradient.parameter().grad();
      if (gradient.defined()) gradient.zero_();
    }
  }));
  return status_;
}

absl::Status DistributedDataParallel::CheckNothingLocal() const {
  bool local = in_window_;
  for (const auto& parameter : parameters_) local |= parameter->used;
  if (!local) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "StepWithoutData would lose gradients that this rank has summed up and "
      "not exchanged: end a window of Accumulate by Flush or DropWindow, and "
      "what was summed up in NoSync scopes by Synchronize and FinishStep");
}

absl::StatusOr<bool> DistributedDataParallel::StepWithoutData() {
  COXSWAIN_RETURN_IF_ERROR(CheckBetweenSteps("StepWithoutData"));
  if (!options_.reducer.uneven_inputs) {
    return absl::FailedPreconditionError(
        "StepWithoutData needs ReducerOptions::uneven_inputs, on all ranks");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckNothingLocal());
  if (options_.reducer.find_unused_parameters) {
    Keep(Guarded("keeping the gradients", [this] {
      for (const auto& parameter : parameters_) parameter->gradient.SetAside();
    }));
  }
  if (status_.ok()) Keep(reducer_->BeginStep(/*weight=*/0));
  FinishExchange(/*of_pass=*/false);
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (!reducer_->report().empty) {
    COXSWAIN_RETURN_IF_ERROR(FinishStep());
    return true;
  }
  phase_ = Phase::kNone;
  reducer_->Rollback();
  return false;
}

// ---- gradients ----

absl::Status DistributedDataParallel::BeginStep() {
  COXSWAIN_RETURN_IF_ERROR(reducer_->BeginStep());
  phase_ = Phase::kBegun;
  if (static_graph_ == nullptr) return absl::OkStatus();
  static_graph_->BeginPass();
  for (const int parameter : static_graph_->absent()) {
    COXSWAIN_RETURN_IF_ERROR(MarkOrZeros(parameter));
  }
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::MarkUnreached(const Tensor& loss) {
  std::unordered_set<const ::torch::autograd::Node*> nodes;
  COXSWAIN_RETURN_IF_ERROR(
      Guarded("reading the graph", [&] { nodes = NodesBehind(loss); }));
  COXSWAIN_RETURN_IF_ERROR(BeginStep());
  for (const auto& parameter : parameters_) {
    if (nodes.count(parameter->accumulate_grad.get()) > 0) continue;
    COXSWAIN_RETURN_IF_ERROR(MarkOrZeros(parameter->index));
  }
  return absl::OkStatus();
}

void DistributedDataParallel::OnGradient(Parameter& parameter) {
  if (!status_.ok()) return;
  parameter.used = parameter.used || parameter.gradient.defined();
  Keep(Guarded("separating gradients", [&] { parameter.gradient.Separate(); }));
  if (!status_.ok()) return;
  if (exchanges()) {
    Keep(CheckDeclared());
    if (!status_.ok()) return;
    if (phase_ != Phase::kRunning) Keep(EnterPass());
    if (status_.ok()) Keep(Arrived(parameter));
  } else if (phase_ == Phase::kNone || phase_ == Phase::kAveraged) {
    Keep(Guarded("adding up gradients", [&] { parameter.gradient.Adopt(); }));
  } else {
    Keep(absl::FailedPreconditionError(
        "a backward pass that only sums up locally adds to gradients that are "
        "being exchanged; call Synchronize first"));
  }
}

absl::Status DistributedDataParallel::EnterPass() {
  // kEnded: a backward pass inside this one was over.
  if (phase_ != Phase::kBegun && phase_ != Phase::kEnded) {
    COXSWAIN_RETURN_IF_ERROR(BeginStep());
  }
  phase_ = Phase::kRunning;
  return Guarded("watching the pass", [this] {
    ::torch::autograd::Engine::get_default_engine().queue_callback([this] {
      if (phase_ == Phase::kRunning) phase_ = Phase::kEnded;
    });
  });
}

absl::Status DistributedDataParallel::Arrived(Parameter& parameter) {
  if (static_graph_ != nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool last,
                              static_graph_->Arrived(parameter.index));
    if (!last) return absl::OkStatus();
  }
  return Mark(parameter.index);
}

absl::Status DistributedDataParallel::Mark(int parameter) {
  Parameter& marked = *parameters_[static_cast<size_t>(parameter)];
  if (!marked.gradient.defined()) return absl::OkStatus();  // stays unmarked
  const bool used = marked.used || !options_.reducer.find_unused_parameters;
  return marked.gradient.Mark(*reducer_, parameter, used);
}

absl::Status DistributedDataParallel::MarkOrZeros(int parameter) {
  Parameter& marked = *parameters_[static_cast<size_t>(parameter)];
  return marked.gradient.defined()
             ? Mark(parameter)
             : marked.gradient.MarkZeros(*reducer_, parameter);
}

absl::Status DistributedDataParallel::MarkRest(bool of_pass) {
  if (of_pass && static_graph_ != nullptr) {
    const bool first = !static_graph_->learned();
    COXSWAIN_RETURN_IF_ERROR(static_graph_->EndPass());
    // In the order of the pass, by which the reducer divides the buckets.
    for (const int parameter : static_graph_->order()) {
      if (first) COXSWAIN_RETURN_IF_ERROR(Mark(parameter));
    }
  }
  // What was summed up locally counts, even if this pass did not reach it.
  for (const int parameter : reducer_->Unmarked()) {
    COXSWAIN_RETURN_IF_ERROR(Mark(parameter));
  }
  return absl::OkStatus();
}

void DistributedDataParallel::FinishExchange(bool of_pass) {
  if (status_.ok()) Keep(MarkRest(of_pass));
  if (status_.ok()) Keep(reducer_->Finish());
  phase_ = Phase::kNone;
  if (!status_.ok()) return;
  phase_ = Phase::kAveraged;
  Keep(Guarded("writing the gradients", [this] { TakeAverages(); }));
}

void DistributedDataParallel::TakeAverages() {
  const bool empty = reducer_->report().empty;
  for (const auto& parameter : parameters_) {
    parameter->used = false;
    if (empty || reducer_->unused_everywhere(parameter->index)) {
      parameter->gradient.LeaveAsItWas();
    } else if (parameter->optimizer == nullptr) {
      parameter->gradient.TakeAverage();
    }
  }
}

absl::Status DistributedDataParallel::StepOptimizers(const Bucket& bucket) {
  return Guarded("overlapped optimizer", [&] {
    // Each thread has a mode of its own.
    const ::torch::NoGradGuard no_grad;
    for (const GradientSlot& slot : bucket.gradients) {
      Parameter& parameter = *parameters_[static_cast<size_t>(slot.parameter)];
      parameter.gradient.TakeAverage();
      parameter.optimizer->step();
      Tensor gradient = parameter.gradient.parameter().grad();
      gradient.zero_();
    }
  });
}

}  // namespace coxswain::torch
