#include "train/generation_training.h"

#include <utility>

#include "base/status_macros.h"
#include "client/reduce/trace_file.h"
#include "client/schedule/schedule_client.h"
#include "hooks/registry/planned_hook.h"
#include "train/trained_model.h"

namespace coxswain {

absl::StatusOr<ReducerOptions> ReducerOptionsOf(const TrainOptions& options) {
  ReducerOptions reducer;
  reducer.buckets = options.buckets;
  reducer.max_norm = options.max_norm;
  COXSWAIN_RETURN_IF_ERROR(CheckReducerOptions(reducer));
  return reducer;
}

absl::Status GenerationTraining::Connect(
    std::shared_ptr<Communicator> communicator, const CheckHook& check_hook,
    bool same_at_start) {
  communicator_ = std::move(communicator);
  const TrainOptions& options = trained_.options;
  ParameterExchange::Options exchange;
  COXSWAIN_ASSIGN_OR_RETURN(exchange.reducer, ReducerOptionsOf(options));
  COXSWAIN_ASSIGN_OR_RETURN(exchange.reducer.gate,
                            session_.schedule().Gate(schedule::kTrainStream));
  COXSWAIN_RETURN_IF_ERROR(AddTrace(options.session->trace_file,
                                    session_.rank(), &exchange.reducer));
  exchange.skip_non_finite = options.skip_non_finite;
  exchange.plan = session_.schedule().plan();
  exchange.check_hook = check_hook;
  exchange.same_at_start = same_at_start;
  exchange.step_optimizer = trained_.optimizer.step;
  COXSWAIN_ASSIGN_OR_RETURN(
      exchange_, ParameterExchange::Create(exchange, trained_.parameters,
                                           communicator_.get()));
  ProgramCheckpoint::Options saving;
  saving.make_hook = MakePlannedHook;
  saving.retention = options.retention;
  checkpoint_ = std::make_unique<RecordCheckpoint>(
      session_, ProgramOf(trained_.parameters, trained_.optimizer), saving,
      [this] { return State(); }, &record_);
  return absl::OkStatus();
}

ProgramCheckpoint::Training GenerationTraining::State() {
  ProgramCheckpoint::Training state;
  state.accumulator = &exchange_->accumulator();
  state.hook = &exchange_->hook();
  state.averager = exchange_->averager();
  state.parameters = exchange_->parameters();
  state.decided = exchange_->decided();
  state.unite = [this] { return exchange_->AverageParameters(); };
  return state;
}

std::unique_ptr<Hook> GenerationTraining::Disconnect() {
  checkpoint_.reset();
  return ParameterExchange::TakeHook(std::move(exchange_));
}

absl::StatusOr<MicroBatch> GenerationTraining::BeginMicroBatch(
    const Accumulator::Begin& begin) {
  COXSWAIN_RETURN_IF_ERROR(CheckGoing());
  COXSWAIN_RETURN_IF_ERROR(EnterWindow());
  session_.schedule().NoteMicroBatch();
  return exchange_->Begin(begin);
}

absl::StatusOr<bool> GenerationTraining::Flush() {
  COXSWAIN_RETURN_IF_ERROR(EnterWindow());
  COXSWAIN_ASSIGN_OR_RETURN(const bool rest, exchange_->Flush());
  if (!rest) LeaveWindow();
  return rest;
}

absl::StatusOr<bool> GenerationTraining::StepWithoutData() {
  COXSWAIN_RETURN_IF_ERROR(CheckGoing());
  COXSWAIN_RETURN_IF_ERROR(EnterWindow());
  COXSWAIN_ASSIGN_OR_RETURN(const bool more, exchange_->StepWithoutData());
  // Where it ended the epoch, the others have counted a window.
  if (!more) LeaveWindow();
  return more;
}

absl::Status GenerationTraining::TakeStep() {
  COXSWAIN_RETURN_IF_ERROR(exchange_->StepOptimizer());
  LeaveWindow();
  checkpoint_->NoteStep();
  AfterStep();
  return absl::OkStatus();
}

}  // namespace coxswain
