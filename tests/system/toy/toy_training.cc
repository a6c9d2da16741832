#include "tests/system/toy/toy_training.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/checkpoint/training_state.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/step_gate.h"

namespace coxswain {

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

ToyTraining::ToyTraining(const ToyOptions& options, Session* session)
    : options_(options), session_(*session), model_(options.model) {}

absl::Status ToyTraining::Run() {
  COXSWAIN_RETURN_IF_ERROR(Connect());
  if (options_.batches.empty()) return Epoch(-1);
  for (int64_t epoch = 0; epoch < options_.epochs && !over(); ++epoch) {
    const auto rank = static_cast<size_t>(session_.rank());
    const int64_t length = options_.batches[rank % options_.batches.size()];
    batches_ = epoch * length;  // also where not all of the last were begun
    COXSWAIN_RETURN_IF_ERROR(Epoch(length));
    PrintOfRank(absl::StrCat("ends epoch ", epoch, " after step ", step_));
  }
  return absl::OkStatus();
}

absl::Status ToyTraining::Connect() {
  COXSWAIN_ASSIGN_OR_RETURN(world_, session_.World());
  PrintOfRank(absl::StrCat("through ", world_->communicator().backend()));
  if (session_.plan().terms.sync_each_batch) {
    return absl::UnimplementedError("this program exchanges whole windows");
  }
  COXSWAIN_ASSIGN_OR_RETURN(hook_, MakePlannedHook(session_.plan()));
  Accumulator::Options options;
  options.plan = session_.plan();
  options.rank = session_.rank();
  options.world_size = session_.world_size();
  COXSWAIN_ASSIGN_OR_RETURN(accumulator_, Accumulator::Create(options));
  COXSWAIN_RETURN_IF_ERROR(MakeReducer());
  step_ = options_.first_step;
  if (options_.restore) COXSWAIN_RETURN_IF_ERROR(Restore());
  COXSWAIN_RETURN_IF_ERROR(
      accumulator_->Restore({{schedule::kTrainStream, step_}}));
  if (!options_.dump.empty() && session_.rank() == 0) {
    COXSWAIN_RETURN_IF_ERROR(dump_.Open(options_.dump));
  }
  std::vector<Span> parameters;
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    parameters.push_back(model_.Parameter(static_cast<int>(p)));
  }
  return reducer_->BroadcastFromRoot(parameters);
}

absl::Status ToyTraining::MakeReducer() {
  COXSWAIN_ASSIGN_OR_RETURN(gate_, session_.schedule().Gate());
  ReducerOptions options;
  options.buckets.first_bucket_bytes = 4096;  // several, of a small model
  options.buckets.bucket_bytes = 8192;
  options.statistics = session_.plan().terms.commit_vote;
  options.gate = gate_;
  FollowPlan(session_.plan(), session_.world_size(), &options);
  COXSWAIN_ASSIGN_OR_RETURN(
      reducer_, Reducer::Create(options, model_.specs(), hook_.get(),
                                &world_->communicator()));
  return absl::OkStatus();
}

absl::Status ToyTraining::Restore() {
  COXSWAIN_ASSIGN_OR_RETURN(TrainingState state,
                            LoadTrainingState(session_.checkpoints()));
  if (!model_.SetBytes(state.blobs["parameters"])) {
    return absl::FailedPreconditionError(
        "the checkpoint holds another model's parameters");
  }
  step_ = state.step;
  return hook_->LoadState(state.hook, session_.rank(), session_.world_size());
}

absl::Status ToyTraining::Save() {
  return SaveTrainingState(session_.checkpoints(), world_->communicator(),
                           step_, *hook_, {{"parameters", model_.Bytes()}});
}

bool ToyTraining::over() const {
  return stopped_ || step_ >= options_.steps || accumulator_->finished();
}

// A `length` of -1 is endless.
absl::Status ToyTraining::Epoch(int64_t length) {
  epoch_over_ = false;
  if (length >= 0 && options_.announce_length) {
    COXSWAIN_RETURN_IF_ERROR(accumulator_->BeginEpoch(length));
  }
  for (int64_t n = 0; n != length && !over() && !epoch_over_; ++n) {
    COXSWAIN_ASSIGN_OR_RETURN(const MicroBatch micro, BeginMicroBatch());
    AddGradients(micro);
    ++batches_;
    if (options_.evaluate_every > 0 &&
        batches_ % options_.evaluate_every == 0) {
      COXSWAIN_RETURN_IF_ERROR(Evaluate());
    }
    if (micro.sync) COXSWAIN_RETURN_IF_ERROR(Step(accumulator_->Sum()));
  }
  return over() || epoch_over_ ? absl::OkStatus() : EndOfData();
}

absl::Status ToyTraining::EndOfData() {
  const WindowSum rest = accumulator_->EndOfData();
  const schedule::Terms& terms = accumulator_->plan().terms;
  if (rest.micro_batches > 0 && terms.tail == schedule::TailPolicy::kFlush) {
    COXSWAIN_RETURN_IF_ERROR(Step(rest));
  } else if (rest.micro_batches > 0) {
    PrintOfRank(absl::StrCat("drops ", rest.micro_batches, " micro-batches"));
    model_.ClearGradients();
    in_window_ = false;
  }
  return terms.uneven_data == schedule::UnevenData::kRefuse ? absl::OkStatus()
                                                            : ShareSteps();
}

// Takes part with nothing until all are done.
absl::Status ToyTraining::ShareSteps() {
  while (!epoch_over_ && !over()) {
    COXSWAIN_RETURN_IF_ERROR(Step(accumulator_->StepWithoutData()));
  }
  return absl::OkStatus();
}

absl::StatusOr<MicroBatch> ToyTraining::BeginMicroBatch() {
  if (step_ == options_.wait_at && !in_window_) {
    COXSWAIN_RETURN_IF_ERROR(WaitAtLatch(absl::StrCat("at step ", step_)));
  }
  Accumulator::Begin begin;
  begin.weight = SamplesOf(batches_);
  session_.schedule().NoteMicroBatch();
  COXSWAIN_ASSIGN_OR_RETURN(
      MicroBatch micro,
      accumulator_->BeginMicroBatch(schedule::kTrainStream, begin));
  in_window_ = !micro.sync;
  return micro;
}

int ToyTraining::SamplesOf(int64_t batch) const {
  if (options_.samples.empty()) return ToyBatch().samples;
  const int64_t turn = batch * session_.world_size() + session_.rank();
  return options_.samples[static_cast<size_t>(turn) % options_.samples.size()];
}

void ToyTraining::AddGradients(const MicroBatch& micro) {
  ToyBatch batch;
  batch.samples = SamplesOf(batches_);
  batch.sample_scale = micro.loss_scale / batch.samples;
  batch.step = micro.step;
  batch.micro = micro.micro;
  if (options_.global_data) {
    for (int rank = 0; rank < session_.rank(); ++rank) {
      batch.micro += accumulator_->plan().WindowOf(rank, session_.world_size());
    }
  } else {
    batch.rank = session_.rank();
  }
  if (!options_.batches.empty()) {
    batch.step = batches_;
    batch.micro = 0;
  }
  model_.AddGradients(batch);
}

// A loop of its own, of another length on each rank, which ends with an
// agreement of its own.
absl::Status ToyTraining::Evaluate() {
  const std::string& stream = options_.evaluation_stream;
  for (int n = 0; n <= session_.rank(); ++n) {
    session_.schedule().NoteMicroBatch();
    Accumulator::Begin begin;
    begin.weight = SamplesOf(n);
    COXSWAIN_RETURN_IF_ERROR(
        accumulator_->BeginMicroBatch(stream, begin).status());
  }
  PrintOfRank(absl::StrCat("evaluates on ", session_.rank() + 1));
  ++evaluations_;
  if (stream == schedule::kTrainStream)
    return absl::OkStatus();  // as one should not
  accumulator_->EndOfData(stream);
  COXSWAIN_ASSIGN_OR_RETURN(schedule::StepGate* const gate,
                            session_.schedule().Gate(stream));
  schedule::Ticket ticket;
  ticket.step = evaluations_ - 1;
  ticket.end_of_data = true;
  ticket.plan_version = accumulator_->plan().version;
  COXSWAIN_RETURN_IF_ERROR(gate->Announce(ticket));
  COXSWAIN_RETURN_IF_ERROR(gate->AwaitGrant());
  return gate->Decide({}).status();
}

void ToyTraining::PrintOfRank(absl::string_view what) const {
  PrintLine(absl::StrCat("rank ", session_.rank(), " ", what));
}

void ToyTraining::Report() const {
  std::string line = absl::StrCat("step ", step_);
  if (options_.digest) {
    absl::StrAppend(&line, " digest ",
                    absl::Hex(Crc32c(model_.Bytes()), absl::kZeroPad8));
  }
  PrintOfRank(line);
}

}  // namespace coxswain
