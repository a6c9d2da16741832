#include "train/train.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "client/elastic/elastic_record.h"
#include "client/reduce/trace_file.h"
#include "client/resume/program_checkpoint.h"
#include "client/schedule/schedule_client.h"
#include "hooks/registry/planned_hook.h"
#include "hooks/registry/registry.h"
#include "train/life.h"
#include "train/parameter_exchange.h"
#include "train/trained_model.h"

namespace coxswain {
namespace {

// What Train was given.
struct Trained {
  const TrainOptions& options;
  const std::vector<TrainedParameter>& parameters;
  const TrainedOptimizer& optimizer;
};

// Within one generation, whose end is the end of training.
class GenerationTraining : public Training {
 public:
  GenerationTraining(const Trained& trained, Session* session)
      : trained_(trained), session_(*session) {}

  absl::Status Start();
  absl::Status Finish();

  bool going() const override { return exchange_->going(); }
  int64_t step() const override { return step_; }
  int64_t& counter(const std::string& name) override {
    return record_.counters[name];
  }
  std::string& blob(const std::string& name) override {
    return record_.blobs[name];
  }
  Session& session() override { return session_; }
  const schedule::Plan& plan() override { return exchange_->plan(); }
  bool taken() const override { return stepped() && exchange_->taken(); }
  const schedule::Decision& decision() const override {
    return exchange_->decision();
  }

 private:
  ProgramCheckpoint::Training State();
  absl::Status Resume();
  // Saves the step taken last, if its decision asks for that: at the beginning
  // of the next one, because what the program counts after Step belongs to it.
  absl::Status SaveIfDue();

  absl::StatusOr<MicroBatch> BeginMicroBatch(
      const Accumulator::Begin& begin) override {
    COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
    session_.schedule().NoteMicroBatch();
    return exchange_->Begin(begin);
  }
  absl::Status TakeGradient(int parameter) override {
    return exchange_->Ready(parameter);
  }
  absl::Status TakeGradients() override { return exchange_->End(); }
  bool ended() override { return exchange_->ended(); }
  absl::StatusOr<bool> Flush() override {
    COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
    return exchange_->Flush();
  }
  absl::StatusOr<bool> StepWithoutData() override {
    COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
    COXSWAIN_ASSIGN_OR_RETURN(const bool more, exchange_->StepWithoutData());
    // Where it ended the epoch, the others have counted a window.
    step_ = WindowsOf(exchange_->accumulator(), step_);
    return more;
  }
  absl::Status TakeStep() override {
    COXSWAIN_RETURN_IF_ERROR(exchange_->StepOptimizer());
    step_ = WindowsOf(exchange_->accumulator(), step_);
    session_.ReportProgress(step_);
    save_due_ = true;
    stop_.AfterStep(session_);
    return absl::OkStatus();
  }

  const Trained& trained_;
  Session& session_;
  std::shared_ptr<ProcessGroup> world_;
  std::unique_ptr<ParameterExchange> exchange_;
  std::unique_ptr<ProgramCheckpoint> checkpoint_;
  ElasticRecord record_;
  StopOnSigterm stop_;
  int64_t step_ = 0;
  bool save_due_ = false;
};

ReducerOptions ReducerOptionsOf(const TrainOptions& options) {
  ReducerOptions reducer;
  reducer.buckets = options.buckets;
  reducer.max_norm = options.max_norm;
  return reducer;
}

absl::Status GenerationTraining::Start() {
  const TrainOptions& options = trained_.options;
  COXSWAIN_ASSIGN_OR_RETURN(world_, session_.World());
  ParameterExchange::Options exchange;
  exchange.reducer = ReducerOptionsOf(options);
  COXSWAIN_ASSIGN_OR_RETURN(exchange.reducer.gate,
                            session_.schedule().Gate(schedule::kTrainStream));
  COXSWAIN_RETURN_IF_ERROR(AddTrace(options.session->trace_file,
                                    session_.rank(), &exchange.reducer));
  exchange.skip_non_finite = options.skip_non_finite;
  exchange.plan = session_.schedule().plan();
  exchange.step_optimizer = trained_.optimizer.step;
  COXSWAIN_ASSIGN_OR_RETURN(
      exchange_, ParameterExchange::Create(exchange, trained_.parameters,
                                           &world_->communicator()));
  ProgramCheckpoint::Options saving;
  saving.make_hook = MakePlannedHook;
  saving.retention = options.retention;
  checkpoint_ = std::make_unique<ProgramCheckpoint>(
      session_, ProgramOf(trained_.parameters, trained_.optimizer), saving);
  if (!options.resume.empty()) COXSWAIN_RETURN_IF_ERROR(Resume());
  return stop_.Begin(options.stop_on_sigterm, plan());
}

absl::Status GenerationTraining::Finish() {
  COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
  // A checkpoint that could not be written was logged.
  checkpoint_->Finish(trained_.options.save_timeout).IgnoreError();
  // All ranks end with one model, also where an averager let them go apart.
  return exchange_->AverageParameters();
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

absl::Status GenerationTraining::Resume() {
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto resumed,
      checkpoint_->ResumeIfAny(trained_.options.resume, State()));
  if (!resumed.has_value()) return absl::OkStatus();
  step_ = resumed->step;
  const auto record = resumed->blobs.find(ElasticRecord::kBlob);
  if (record == resumed->blobs.end()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(record_, ElasticRecord::Parse(record->second));
  return absl::OkStatus();
}

absl::Status GenerationTraining::SaveIfDue() {
  if (!std::exchange(save_due_, false)) return absl::OkStatus();
  const schedule::Decision& last = exchange_->decision();
  // A step that was skipped asks for nothing, and may be the last.
  const std::string& reason = last.commit ? last.checkpoint : last.stop;
  if (reason.empty()) return absl::OkStatus();
  const ProgramCheckpoint::Blobs blobs = {
      {ElasticRecord::kBlob, record_.Serialize()}};
  return checkpoint_->Save(State(), reason, blobs).status();
}

absl::StatusOr<JobManifest> ManifestOf(
    const TrainOptions& options,
    const std::vector<TrainedParameter>& parameters) {
  JobManifest manifest;
  manifest.hook = options.hook;
  manifest.accumulation_steps = options.accumulation_steps;
  manifest.terms = options.terms;
  COXSWAIN_ASSIGN_OR_RETURN(manifest.parameters, DescribeTrained(parameters));
  const ReducerOptions reducer = ReducerOptionsOf(options);
  COXSWAIN_RETURN_IF_ERROR(CheckReducerOptions(reducer));
  manifest.settings = ReducerSettings(reducer);
  manifest.settings["skip_non_finite"] =
      options.skip_non_finite ? "true" : "false";
  COXSWAIN_RETURN_IF_ERROR(AddSettings(options.settings, &manifest));
  return manifest;
}

}  // namespace

absl::Status Training::Step(const Gradients& gradients,
                            const Accumulator::Begin& begin) {
  loss_ = 0;
  BeginStep();
  COXSWAIN_ASSIGN_OR_RETURN(const MicroBatch micro, BeginMicroBatch(begin));
  if (!micro.empty) {
    COXSWAIN_RETURN_IF_ERROR(
        RunGuarded("the function of gradients", [&]() -> absl::Status {
          COXSWAIN_ASSIGN_OR_RETURN(loss_, gradients());
          return absl::OkStatus();
        }));
  }
  COXSWAIN_RETURN_IF_ERROR(TakeGradients());
  return EndStep(micro.sync);
}

absl::Status Training::GradientReady(int parameter) {
  return TakeGradient(parameter);
}

absl::Status Train(const TrainOptions& options,
                   const std::vector<TrainedParameter>& parameters,
                   const TrainedOptimizer& optimizer,
                   const std::function<absl::Status(Training&)>& body) {
  TrainOptions filled = options;
  COXSWAIN_ASSIGN_OR_RETURN(filled.hook, CanonicalSpec(options.hook));
  COXSWAIN_RETURN_IF_ERROR(CheckOptimizer(optimizer));
  COXSWAIN_ASSIGN_OR_RETURN(const JobManifest manifest,
                            ManifestOf(filled, parameters));
  if (!filled.session.has_value()) {
    COXSWAIN_ASSIGN_OR_RETURN(filled.session,
                              SessionOptions::FromEnvironment());
  }
  const Trained trained{filled, parameters, optimizer};
  return TrainInSession(
      *filled.session, manifest,
      [&](Session& session, std::shared_ptr<void>* until_left) -> absl::Status {
        const auto training =
            std::make_shared<GenerationTraining>(trained, &session);
        *until_left = training;
        COXSWAIN_RETURN_IF_ERROR(training->Start());
        COXSWAIN_RETURN_IF_ERROR(
            RunGuarded("the body of Train", [&] { return body(*training); }));
        return training->Finish();
      });
}

}  // namespace coxswain
