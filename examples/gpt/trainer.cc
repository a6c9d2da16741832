#include "examples/gpt/trainer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "client/torch/pipeline/pipeline_checkpoint.h"
#include "hooks/registry/planned_hook.h"
#include "hooks/registry/registry.h"

namespace coxswain::examples::gpt {
namespace {

// Steps in which the learning rate grows to what it is to be.
constexpr int64_t kWarmUp = 10;
// Points of a run's curve.
constexpr int64_t kReports = 50;
constexpr absl::Duration kFinishTimeout = absl::Seconds(60);
constexpr char kStepBlob[] = "step";
constexpr char kTakenBlob[] = "taken";

// Returns how many micro-batches of a step each data rank has.
absl::StatusOr<int> ShareOf(const TrainerOptions& options,
                            const std::string& mesh_text, int world_size) {
  int data_ranks = world_size;
  if (!mesh_text.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(const Mesh declared, Mesh::Parse(mesh_text));
    COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh, declared.Fit(world_size));
    data_ranks = mesh.extent("dp") * mesh.extent("shard");
  }
  if (options.micro_batches % data_ranks == 0) {
    return options.micro_batches / data_ranks;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--micro-batches ", options.micro_batches, " cannot be divided by the ",
      data_ranks, " ranks along dp and shard: give a multiple"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    const TrainerOptions& options) {
  std::unique_ptr<Trainer> trainer(new Trainer(options));
  COXSWAIN_ASSIGN_OR_RETURN(trainer->text_,
                            Text::Read(options.text, options.model.length));
  COXSWAIN_RETURN_IF_ERROR(trainer->Connect());
  return trainer;
}

absl::StatusOr<JobManifest> Trainer::Describe(const SessionOptions& where) {
  COXSWAIN_ASSIGN_OR_RETURN(pipeline_options_.hook,
                            CanonicalSpec(options_.hook));
  COXSWAIN_ASSIGN_OR_RETURN(pipeline_options_.ddp.accumulation_steps,
                            ShareOf(options_, where.mesh, where.world_size));
  pipeline_options_.mesh = where.mesh;
  pipeline_options_.stages = options_.stages;
  pipeline_options_.sequence = options_.sequence;
  torch::DistributedDataParallelOptions& ddp = pipeline_options_.ddp;
  ddp.zero = options_.zero;
  ddp.make_hook = MakePlannedHook;
  ddp.make_averager = MakePlannedAverager;
  ddp.trace_file = where.trace_file;
  ddp.terms.pipeline = options_.schedule;
  ddp.terms.checkpoint_every = options_.checkpoint_every;
  ddp.reducer.max_norm = options_.max_norm;
  ddp.terms.commit_vote = options_.max_norm > 0;
  COXSWAIN_ASSIGN_OR_RETURN(
      JobManifest manifest,
      torch::DescribeJob(MakeModel(options_.model), pipeline_options_));
  // What the ranks have in common besides.
  for (const auto& [name, value] : {
           std::pair("seed", absl::StrCat(options_.model.seed)),
           std::pair("heads", absl::StrCat(options_.model.heads)),
           std::pair("dropout", absl::StrCat(options_.model.dropout)),
           std::pair("texts", absl::StrCat(options_.texts)),
           std::pair("text", absl::StrCat(text_->size(), " bytes, ",
                                          absl::Hex(text_->checksum(),
                                                    absl::kZeroPad8))),
           std::pair("learning_rate", absl::StrCat(options_.learning_rate)),
       }) {
    manifest.settings[name] = value;
  }
  return manifest;
}

absl::Status Trainer::Connect() {
  // The ranks of one machine share its cores among themselves.
  at::set_num_threads(1);
  COXSWAIN_ASSIGN_OR_RETURN(const SessionOptions where,
                            SessionOptions::FromEnvironment());
  COXSWAIN_ASSIGN_OR_RETURN(const JobManifest manifest, Describe(where));
  COXSWAIN_ASSIGN_OR_RETURN(session_, Session::Join(where, manifest));
  COXSWAIN_ASSIGN_OR_RETURN(meter_, Meter::Create(*session_, options_.steps));
  pipeline_options_.executor.on_step =
      [this](int64_t, const std::vector<TimedAction>& actions) {
        meter_->AddActions(actions);
      };
  COXSWAIN_ASSIGN_OR_RETURN(
      pipeline_, torch::Pipeline::Create(*session_, MakeModel(options_.model),
                                         MakeLoss(), pipeline_options_));
  optimizer_ = std::make_unique<::torch::optim::AdamW>(
      pipeline_->module()->parameters(),
      ::torch::optim::AdamWOptions(options_.learning_rate).betas({0.9, 0.95}));
  COXSWAIN_RETURN_IF_ERROR(pipeline_->UseOptimizer(*optimizer_));
  torch::ModuleCheckpoint::Options saving;
  saving.make_hook = MakePlannedHook;
  checkpoint_ = std::make_unique<torch::ModuleCheckpoint>(
      *session_, torch::ProgramOf(*pipeline_), saving);
  return options_.resume.empty() ? absl::OkStatus() : Resume();
}

absl::Status Trainer::Resume() {
  COXSWAIN_ASSIGN_OR_RETURN(
      auto from, checkpoint_->ResumeIfAny(options_.resume, pipeline_->ddp()));
  if (!from.has_value()) return absl::OkStatus();
  if (absl::SimpleAtoi(from->blobs[kStepBlob], &step_) &&
      absl::SimpleAtoi(from->blobs[kTakenBlob], &taken_)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("checkpoint '", from->checkpoint_id,
                                          "' has no position in its text"));
}

std::vector<torch::PipelineBatch> Trainer::MakeBatches(Part part, int64_t first,
                                                       int count) const {
  const int64_t ranks = pipeline_->data_ranks();
  std::vector<torch::PipelineBatch> batches;
  for (int64_t i = pipeline_->data_index(); i < count; i += ranks) {
    ::torch::Tensor tokens = ::torch::empty(
        {options_.texts, options_.model.length}, ::torch::kInt64);
    ::torch::Tensor targets = ::torch::empty_like(tokens);
    for (int64_t row = 0; row < options_.texts; ++row) {
      const int64_t number = (first + i) * options_.texts + row;
      text_->Copy(part == Part::kTrained
                      ? text_->TrainingPiece(options_.model.seed, number)
                      : text_->HeldOutPiece(number),
                  tokens[row].data_ptr<int64_t>(),
                  targets[row].data_ptr<int64_t>());
    }
    torch::PipelineBatch batch;
    if (pipeline_->has_inputs()) batch.inputs = {tokens};
    if (pipeline_->has_targets()) batch.targets = {targets};
    batches.push_back(std::move(batch));
  }
  return batches;
}

absl::Status Trainer::TakeStep() {
  for (auto& group : optimizer_->param_groups()) {
    const double share = static_cast<double>(std::min(step_ + 1, kWarmUp)) /
                         static_cast<double>(kWarmUp);
    group.options().set_lr(share * options_.learning_rate);
  }
  // Of all data ranks; an operator may have changed it.
  int count = 0;
  for (int i = 0; i < pipeline_->data_ranks(); ++i) {
    count += pipeline_->ddp().plan().WindowOf(i, pipeline_->data_ranks());
  }
  meter_->BeginStep(*pipeline_);
  COXSWAIN_ASSIGN_OR_RETURN(
      const torch::PipelineResult result,
      pipeline_->Step(MakeBatches(Part::kTrained, taken_, count)));
  ++step_;
  taken_ += count;
  meter_->EndStep(*pipeline_, result, step_,
                  count * options_.texts * options_.model.length);
  session_->ReportProgress(step_);
  return checkpoint_
      ->SaveIfAsked(pipeline_->ddp(), {{kStepBlob, absl::StrCat(step_)},
                                       {kTakenBlob, absl::StrCat(taken_)}})
      .status();
}

absl::Status Trainer::Train() {
  const int64_t last = options_.steps;
  const int64_t every = std::max<int64_t>(1, last / kReports);
  while (step_ < last && !pipeline_->ddp().stopping()) {
    COXSWAIN_RETURN_IF_ERROR(TakeStep());
    if (step_ % every == 0 || step_ == last) COXSWAIN_RETURN_IF_ERROR(Report());
  }
  // One that failed was logged.
  checkpoint_->Finish(kFinishTimeout).IgnoreError();
  COXSWAIN_ASSIGN_OR_RETURN(const Result result, Finish());
  if (session_->rank() == 0) options_.on_result(result);
  return absl::OkStatus();
}

absl::Status Trainer::Report() {
  COXSWAIN_ASSIGN_OR_RETURN(const StepEvent event, meter_->Interval(step_));
  if (session_->rank() == 0) options_.on_step(event);
  return absl::OkStatus();
}

absl::StatusOr<double> Trainer::Evaluate() {
  std::vector<torch::PipelineBatch> batches =
      MakeBatches(Part::kHeldOut, 0, options_.held_out);
  std::vector<double> losses;
  // Data ranks beyond the micro-batches have none.
  if (!batches.empty()) {
    pipeline_->module()->eval();
    COXSWAIN_ASSIGN_OR_RETURN(const torch::PipelineResult result,
                              pipeline_->Evaluate(std::move(batches)));
    pipeline_->module()->train();
    losses = result.losses;
  }
  return meter_->MeanLoss(*pipeline_, losses);
}

absl::StatusOr<Result> Trainer::Finish() {
  Result result;
  COXSWAIN_RETURN_IF_ERROR(meter_->Fill(*pipeline_, &result));
  COXSWAIN_ASSIGN_OR_RETURN(result.held_out_loss, Evaluate());
  result.mesh = session_->mesh().ToString();
  result.world_size = session_->world_size();
  result.zero = options_.zero;
  result.hook = pipeline_options_.hook;
  result.schedule = options_.schedule;
  result.sequence = options_.sequence;
  result.steps = step_;
  return result;
}

absl::Status Trainer::Run() {
  absl::Status status;
  try {
    status = Train();
  } catch (const std::exception& error) {
    status = absl::InternalError(absl::StrCat("libtorch: ", error.what()));
  }
  if (status.ok()) return session_->Leave("training is done");
  // Further errors while leaving are consequences of `status`.
  session_->Leave(status.message(), /*failed=*/true).IgnoreError();
  return status;
}

}  // namespace coxswain::examples::gpt
