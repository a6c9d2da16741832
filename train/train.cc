#include "train/train.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "client/elastic/elastic_record.h"
#include "hooks/registry/registry.h"
#include "train/elastic_train.h"
#include "train/generation_training.h"
#include "train/life.h"
#include "train/trained_model.h"

namespace coxswain {
namespace {

// Within one generation, whose end is the end of training.
class PlainTraining : public GenerationTraining {
 public:
  PlainTraining(const Trained& trained, Session* session)
      : GenerationTraining(trained, session, &record_) {}

  absl::Status Start() {
    COXSWAIN_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> world,
                              session().World());
    COXSWAIN_RETURN_IF_ERROR(
        Connect(std::shared_ptr<Communicator>(world, &world->communicator())));
    COXSWAIN_RETURN_IF_ERROR(Resume());
    return stop_.Begin(trained().options.stop_on_sigterm, plan());
  }

  absl::Status Finish() {
    COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
    FinishSaving();
    // All ranks end with one model, also where an averager let them go apart.
    return exchange().AverageParameters();
  }

 private:
  void AfterStep() override {
    session().ReportProgress(step());
    stop_.AfterStep(session());
  }

  ElasticRecord record_;
  StopOnSigterm stop_;
};

absl::Status TrainOnce(const Trained& trained, const JobManifest& manifest,
                       const std::function<absl::Status(Training&)>& body) {
  return TrainInSession(
      *trained.options.session, manifest,
      [&](Session& session, std::shared_ptr<void>* until_left) -> absl::Status {
        const auto training =
            std::make_shared<PlainTraining>(trained, &session);
        *until_left = training;
        COXSWAIN_RETURN_IF_ERROR(training->Start());
        COXSWAIN_RETURN_IF_ERROR(
            RunGuarded("the body of Train", [&] { return body(*training); }));
        return training->Finish();
      });
}

absl::StatusOr<JobManifest> ManifestOf(
    const TrainOptions& options,
    const std::vector<TrainedParameter>& parameters) {
  JobManifest manifest;
  manifest.hook = options.hook;
  manifest.accumulation_steps = options.accumulation_steps;
  manifest.terms = options.terms;
  COXSWAIN_ASSIGN_OR_RETURN(manifest.parameters, DescribeTrained(parameters));
  COXSWAIN_ASSIGN_OR_RETURN(const ReducerOptions reducer,
                            ReducerOptionsOf(options));
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
  return filled.elastic ? TrainElastically(trained, manifest, body)
                        : TrainOnce(trained, manifest, body);
}

}  // namespace coxswain
