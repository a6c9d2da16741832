#include "train/elastic_train.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/elastic/drain_signal.h"
#include "client/elastic/elastic_run.h"
#include "client/elastic/error_norm_reports.h"
#include "client/elastic/load_hook_state.h"
#include "client/elastic/record_state.h"
#include "client/schedule/schedule_client.h"
#include "train/life.h"
#include "train/trained_model.h"

namespace coxswain {
namespace {

// What a rank needs to go on from its peers' step.
class TrainedState : public RecordState {
 public:
  explicit TrainedState(const Trained& trained)
      : values_(MemoryOf(trained.parameters).values),
        program_(ProgramOf(trained.parameters, trained.optimizer)) {}

  std::vector<Span> Tensors() override { return values_; }

 private:
  absl::StatusOr<std::string> SaveOptimizer() override {
    return program_.save_optimizer();
  }
  absl::Status LoadOptimizer(absl::string_view bytes) override {
    return program_.load_optimizer(bytes);
  }

  const std::vector<Span> values_;
  const ProgramCheckpoint::Program program_;
};

class ElasticGenerationTraining : public GenerationTraining {
 public:
  ElasticGenerationTraining(const Trained& trained, TrainedState* state,
                            ElasticGeneration* generation)
      : GenerationTraining(trained, generation->session, &state->record()),
        state_(*state),
        generation_(*generation),
        error_norms_(trained.options.session->clock) {}

  absl::Status Start();
  absl::Status Finish(absl::Status status, ElasticRun::Trained* trained);

  bool going() const override {
    return GenerationTraining::going() && !regrouping();
  }

 private:
  bool regrouping() const { return !decision().regroup.empty(); }

  absl::Status CheckGoing() override;
  absl::Status EnterWindow() override;
  bool LeaveWindow() override;
  void AfterStep() override;

  TrainedState& state_;
  ElasticGeneration& generation_;
  ErrorNormReports error_norms_;
  bool notified_ = false;  // the body, that it is to return
};

absl::Status ElasticGenerationTraining::Start() {
  // It outlives the generation.
  const std::shared_ptr<Communicator> communicator(std::shared_ptr<void>(),
                                                   generation_.communicator);
  // Recovery has compared or copied the parameters.
  COXSWAIN_RETURN_IF_ERROR(Connect(
      communicator,
      [this](const Hook& hook) { return CheckElasticHook(generation_, hook); },
      /*same_at_start=*/true));
  COXSWAIN_RETURN_IF_ERROR(
      LoadHookState(&generation_, plan(), &exchange().hook()));
  COXSWAIN_RETURN_IF_ERROR(
      exchange().accumulator().Restore(state_.record().position));
  // The same on all ranks; what they have is newer than any checkpoint, or, if
  // they went back to the beginning, right where those may be wrong.
  if (state_.record().progress == 0 && generation_.trained == 0) {
    COXSWAIN_RETURN_IF_ERROR(Resume());
  }
  state_.Keep();
  return CatchSigtermIf(trained().options.stop_on_sigterm, plan()).status();
}

absl::Status ElasticGenerationTraining::Finish(absl::Status status,
                                               ElasticRun::Trained* trained) {
  if (regrouping()) {
    trained->outcome = ElasticRun::Outcome::kRegroup;
    // The body has gone on until it was notified.
    if (notified_) status = absl::OkStatus();
  }
  // The body may have looked at none of its errors.
  if (status.ok()) status = exchange().status();
  if (status.ok()) {
    if (!state_.in_window()) LeaveWindow();
    status = SaveIfDue();
    FinishSaving();
  }
  // Also of a window that was begun and left.
  state_.Rollback();
  COXSWAIN_ASSIGN_OR_RETURN(trained->hook_state, Disconnect()->SaveOwn());
  return status;
}

absl::Status ElasticGenerationTraining::CheckGoing() {
  if (!regrouping()) return absl::OkStatus();
  notified_ = true;
  return absl::FailedPreconditionError(absl::StrCat(
      "the generation ends with the step before this one (", decision().regroup,
      "): the body is to return when going() is false"));
}

absl::Status ElasticGenerationTraining::EnterWindow() {
  if (state_.in_window()) return absl::OkStatus();
  // What the program has changed since the last step belongs to that.
  LeaveWindow();
  COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
  generation_.before_step(exchange().hook(), plan());
  state_.Begin();
  return absl::OkStatus();
}

bool ElasticGenerationTraining::LeaveWindow() {
  const bool left = GenerationTraining::LeaveWindow();
  if (left) state_.Keep();
  return left;
}

void ElasticGenerationTraining::AfterStep() {
  generation_.after_step(step());
  error_norms_.AfterStep(session(), exchange().hook(), step());
}

}  // namespace

absl::Status TrainElastically(
    const Trained& trained, const JobManifest& manifest,
    const std::function<absl::Status(Training&)>& body) {
  ElasticRun::Options run;
  run.session = *trained.options.session;
  run.manifest = manifest;
  run.recovery.replay = trained.options.replay;
  if (trained.options.stop_on_sigterm) {
    run.drain_requested = DrainSignalled;
    run.drain_reason = kStoppedBySigterm;
    // In one place with the drain, so that both come with the same ticket.
    run.on_drain = [](Session& session) {
      session.schedule().RequestCheckpoint(kStoppedBySigterm);
    };
  }
  TrainedState state(trained);
  return ElasticRun::Run(
      run, &state,
      [&](ElasticGeneration& generation,
          ElasticRun::Trained* outcome) -> absl::Status {
        ElasticGenerationTraining training(trained, &state, &generation);
        COXSWAIN_RETURN_IF_ERROR(training.Start());
        return training.Finish(
            RunGuarded("the body of Train", [&] { return body(training); }),
            outcome);
      });
}

}  // namespace coxswain
