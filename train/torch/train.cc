#include "train/torch/train.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/elastic/drain_signal.h"
#include "client/elastic/elastic_record.h"
#include "client/resume/record_checkpoint.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/elastic/elastic_training.h"
#include "client/torch/module_checkpoint.h"
#include "client/torch/shard/sharded_checkpoint.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "hooks/registry/planned_hook.h"
#include "hooks/registry/registry.h"
#include "train/life.h"

namespace coxswain::torch {
namespace {

using Body = std::function<absl::Status(Training&)>;

absl::Status Call(const Body& body, Training* training) {
  return RunGuarded("the body of Train", [&] { return body(*training); });
}

// Within one generation, whose end is the end of training.
class PlainTraining : public Training {
 public:
  PlainTraining(const TrainOptions& options, Session* session,
                std::shared_ptr<::torch::nn::Module> module,
                ::torch::optim::Optimizer* optimizer)
      : options_(options),
        session_(*session),
        module_(std::move(module)),
        optimizer_(*optimizer) {}

  absl::Status Start() {
    DistributedDataParallelOptions ddp = options_.ddp;
    COXSWAIN_RETURN_IF_ERROR(FollowSession(session_, &ddp));
    COXSWAIN_ASSIGN_OR_RETURN(world_, session_.World());
    COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> hook,
                              ddp.make_hook(*ddp.plan));
    COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Averager> averager,
                              ddp.make_averager(*ddp.plan));
    COXSWAIN_ASSIGN_OR_RETURN(
        ddp_, DistributedDataParallel::Create(module_, &world_->communicator(),
                                              std::move(hook), ddp,
                                              std::move(averager)));
    if (ddp_->zero() > 0) {
      COXSWAIN_ASSIGN_OR_RETURN(sharded_,
                                ShardedOptimizer::Create(*ddp_, optimizer_));
    }
    ProgramCheckpoint::Options saving;
    saving.make_hook = ddp.make_hook;
    saving.retention = options_.retention;
    checkpoint_ = std::make_unique<RecordCheckpoint>(
        session_,
        sharded_ != nullptr ? ProgramOf(module_, sharded_.get())
                            : ProgramOf(module_, &optimizer_),
        saving, [this] { return StateOf(*ddp_); }, &record_);
    COXSWAIN_RETURN_IF_ERROR(checkpoint_->Resume(options_.resume).status());
    return stop_.Begin(options_.stop_on_sigterm, ddp_->plan());
  }

  absl::Status Finish() {
    COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
    checkpoint_->Finish(options_.save_timeout);
    // All ranks end with one model, also where an averager let them go apart.
    return ddp_->AverageParameters();
  }

  bool going() const override { return !ddp_->stopping() && !ddp_->finished(); }
  int64_t step() const override { return record_.step(); }
  int64_t& counter(const std::string& name) override {
    return record_.counters[name];
  }
  std::string& blob(const std::string& name) override {
    return record_.blobs[name];
  }
  Session& session() override { return session_; }
  DistributedDataParallel& ddp() override { return *ddp_; }

 private:
  absl::Status SaveIfDue() { return checkpoint_->SaveIfDue(ddp_->decision()); }
  void NoteWindow() {
    checkpoint_->NoteWindow(ddp_->accumulator(), ddp_->decided());
  }

  absl::StatusOr<MicroBatch> Accumulate(
      const Accumulator::Begin& begin) override {
    COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
    return ddp_->Accumulate(begin);
  }
  absl::Status Backward(const ::torch::Tensor& loss,
                        const MicroBatch& micro) override {
    return ddp_->Backward(loss, micro);
  }
  absl::StatusOr<bool> Flush() override {
    COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
    return ddp_->Flush();
  }
  absl::StatusOr<bool> StepWithoutData() override {
    COXSWAIN_RETURN_IF_ERROR(SaveIfDue());
    COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp_->StepWithoutData());
    // Where it ended the epoch, the others have counted a window.
    if (!more) NoteWindow();
    return more;
  }
  absl::Status TakeStep() override {
    COXSWAIN_RETURN_IF_ERROR((sharded_ != nullptr
                                  ? sharded_->Step()
                                  : ddp_->StepOptimizer(optimizer_))
                                 .status());
    NoteWindow();
    checkpoint_->NoteStep();
    session_.ReportProgress(step());
    stop_.AfterStep(session_);
    return absl::OkStatus();
  }

  const TrainOptions& options_;
  Session& session_;
  const std::shared_ptr<::torch::nn::Module> module_;
  ::torch::optim::Optimizer& optimizer_;
  std::shared_ptr<ProcessGroup> world_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  // Null without zero.
  std::unique_ptr<ShardedOptimizer> sharded_;
  ElasticRecord record_;
  std::unique_ptr<RecordCheckpoint> checkpoint_;
  StopOnSigterm stop_;
};

// Over an ElasticTraining, which does the same for each generation.
class ElasticAdapter : public Training {
 public:
  explicit ElasticAdapter(ElasticTraining* training) : training_(*training) {}

  bool going() const override { return training_.going(); }
  int64_t step() const override { return training_.step(); }
  int64_t& counter(const std::string& name) override {
    return training_.counter(name);
  }
  std::string& blob(const std::string& name) override {
    return training_.blob(name);
  }
  Session& session() override { return training_.session(); }
  DistributedDataParallel& ddp() override { return training_.ddp(); }

 private:
  absl::StatusOr<MicroBatch> Accumulate(
      const Accumulator::Begin& begin) override {
    return training_.Accumulate(begin);
  }
  absl::Status Backward(const ::torch::Tensor& loss,
                        const MicroBatch& micro) override {
    return training_.Backward(loss, micro);
  }
  absl::StatusOr<bool> Flush() override { return training_.Flush(); }
  absl::StatusOr<bool> StepWithoutData() override {
    return training_.StepWithoutData();
  }
  absl::Status TakeStep() override {
    return training_.StepOptimizer().status();
  }

  ElasticTraining& training_;
};

absl::StatusOr<JobManifest> ManifestOf(const TrainOptions& options,
                                       const ::torch::nn::Module& module) {
  COXSWAIN_ASSIGN_OR_RETURN(JobManifest manifest,
                            DescribeJob(module, options.hook, options.ddp));
  COXSWAIN_RETURN_IF_ERROR(AddSettings(options.settings, &manifest));
  return manifest;
}

absl::Status TrainOnce(const TrainOptions& options,
                       const std::shared_ptr<::torch::nn::Module>& module,
                       ::torch::optim::Optimizer* optimizer, const Body& body) {
  COXSWAIN_ASSIGN_OR_RETURN(const JobManifest manifest,
                            ManifestOf(options, *module));
  return TrainInSession(
      *options.session, manifest,
      [&](Session& session, std::shared_ptr<void>* until_left) -> absl::Status {
        const auto training = std::make_shared<PlainTraining>(
            options, &session, module, optimizer);
        *until_left = training;
        COXSWAIN_RETURN_IF_ERROR(training->Start());
        COXSWAIN_RETURN_IF_ERROR(Call(body, training.get()));
        return training->Finish();
      });
}

absl::Status TrainElastically(
    const TrainOptions& options,
    const std::shared_ptr<::torch::nn::Module>& module,
    ::torch::optim::Optimizer* optimizer, const Body& body) {
  if (!options.settings.empty()) {
    return absl::UnimplementedError(
        "TrainOptions::settings are not compared in an elastic training; leave "
        "them out");
  }
  ElasticTrainingOptions elastic;
  elastic.run.session = *options.session;
  elastic.hook = options.hook;
  elastic.ddp = options.ddp;
  elastic.retention = options.retention;
  elastic.save_timeout = options.save_timeout;
  elastic.resume = options.resume;
  elastic.run.recovery.replay = options.replay;
  if (options.stop_on_sigterm) {
    COXSWAIN_RETURN_IF_ERROR(CatchSigterm());
    elastic.run.drain_requested = DrainSignalled;
    elastic.run.drain_reason = kStoppedBySigterm;
  }
  return ElasticTraining::Run(elastic, module, *optimizer,
                              [&body](ElasticTraining& generation) {
                                ElasticAdapter training(&generation);
                                return Call(body, &training);
                              });
}

}  // namespace

absl::Status Training::Step(const Loss& loss, const Accumulator::Begin& begin) {
  BeginStep();
  COXSWAIN_ASSIGN_OR_RETURN(const MicroBatch micro, Accumulate(begin));
  if (micro.empty) {
    loss_ = ::torch::zeros({});
  } else {
    COXSWAIN_RETURN_IF_ERROR(RunGuarded("the loss function", [&] {
      loss_ = loss();
      return absl::OkStatus();
    }));
    if (!loss_.defined() || loss_.numel() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the loss function returned ",
          loss_.defined()
              ? absl::StrCat("a tensor of ", loss_.numel(), " elements")
              : "an undefined tensor",
          "; return the mean loss of the micro-batch, a single number"));
    }
  }
  COXSWAIN_RETURN_IF_ERROR(Backward(loss_, micro));
  loss_ = loss_.detach();
  return EndStep(micro.sync);
}

absl::Status Train(const TrainOptions& options,
                   std::shared_ptr<::torch::nn::Module> module,
                   ::torch::optim::Optimizer& optimizer,
                   const std::function<absl::Status(Training&)>& body) {
  TrainOptions filled = options;
  COXSWAIN_ASSIGN_OR_RETURN(filled.hook, CanonicalSpec(options.hook));
  if (!filled.session.has_value()) {
    COXSWAIN_ASSIGN_OR_RETURN(filled.session,
                              SessionOptions::FromEnvironment());
  }
  if (filled.ddp.trace_file.empty()) {
    filled.ddp.trace_file = filled.session->trace_file;
  }
  if (options.zero != 0) filled.ddp.zero = options.zero;
  if (options.offload) filled.ddp.offload = true;
  if (!filled.ddp.make_hook) filled.ddp.make_hook = MakePlannedHook;
  if (filled.elastic) {
    return TrainElastically(filled, module, &optimizer, body);
  }
  if (!filled.ddp.make_averager) filled.ddp.make_averager = MakePlannedAverager;
  return TrainOnce(filled, module, &optimizer, body);
}

}  // namespace coxswain::torch
