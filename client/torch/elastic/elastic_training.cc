#include "client/torch/elastic/elastic_training.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/elastic/load_hook_state.h"
#include "client/schedule/schedule_client.h"
#include "client/session/join.h"
#include "client/torch/distributed_data_parallel_options.h"
#include "client/torch/elastic/member_catch_up.h"
#include "client/torch/module_checkpoint.h"
#include "client/torch/shard/sharded_checkpoint.h"
#include "client/torch/state_bytes.h"

namespace coxswain::torch {
namespace {

constexpr char kNewest[] = "newest";
constexpr absl::Duration kEndTimeout = absl::Seconds(30);

// Returns an error that all ranks have, once all have come to it: the first
// that left would end the generation of the others, who would wait for another
// one in vain.
absl::Status EndAll(const ElasticGeneration& generation,
                    const absl::Status& error) {
  generation.session->Barrier("", "elastic/lost", kEndTimeout).IgnoreError();
  return error;
}

// Does so with the errors of a checkpoint that no rank can go on from.
template <typename T>
absl::StatusOr<T> EndAllIfShared(const ElasticGeneration& generation,
                                 absl::StatusOr<T> resumed) {
  const absl::Status& error = resumed.status();
  if (absl::IsNotFound(error) || absl::IsFailedPrecondition(error)) {
    return EndAll(generation, error);
  }
  return resumed;
}

absl::Status CheckOptions(const ElasticTrainingOptions& options) {
  if (!options.ddp.make_hook) {
    return absl::InvalidArgumentError(
        "elastic training makes a hook for each generation: set ddp.make_hook, "
        "to MakePlannedHook for example");
  }
  if (options.ddp.overlapped_optimizer) {
    return absl::UnimplementedError(
        "overlapped_optimizer does not go with elastic training: a step that a "
        "peer's end cuts short could not be undone");
  }
  if (options.ddp.reducer.hybrid.shard != nullptr ||
      options.ddp.reducer.hybrid.replicas != nullptr) {
    return absl::InvalidArgumentError(
        "reducer.hybrid is set, and its communicators end with a generation; "
        "leave it out: where the job has a mesh, each generation connects "
        "groups of its own");
  }
  if (options.ddp.zero > 0 &&
      options.run.recovery.replay == ReplayMode::kAlways) {
    return absl::UnimplementedError(
        "recovery.replay is kAlways, and with ddp.zero no rank has the whole "
        "state to go back to: leave one of them out");
  }
  if (options.ddp.make_averager) {
    return absl::UnimplementedError(
        "averagers do not go with elastic training: the ranks' parameters are "
        "apart between averages, so there is no common state to go on with "
        "when one is lost; leave make_averager out, and take a hook that "
        "averages gradients");
  }
  return absl::OkStatus();
}

}  // namespace

ElasticTraining::ElasticTraining(const ElasticTrainingOptions& options,
                                 std::shared_ptr<::torch::nn::Module> module,
                                 ::torch::optim::Optimizer* optimizer,
                                 ElasticModuleState* state,
                                 ElasticShards* shards, MemberCatchUp* catch_up,
                                 ElasticGeneration* generation)
    : options_(options),
      module_(std::move(module)),
      optimizer_(*optimizer),
      state_(*state),
      shards_(*shards),
      catch_up_(*catch_up),
      generation_(*generation),
      began_at_(state->progress()),
      error_norms_(options.run.session.clock) {}

absl::Status ElasticTraining::Run(const ElasticTrainingOptions& options,
                                  std::shared_ptr<::torch::nn::Module> module,
                                  ::torch::optim::Optimizer& optimizer,
                                  const Body& body) {
  COXSWAIN_RETURN_IF_ERROR(CheckOptions(options));
  ElasticRun::Options run = options.run;
  COXSWAIN_ASSIGN_OR_RETURN(run.manifest,
                            DescribeJob(*module, options.hook, options.ddp));
  if (options.ddp.zero > 0) run.recovery.replay = ReplayMode::kNever;
  run.manifest.world_size = options.run.manifest.world_size;
  run.manifest.min_world_size = options.run.manifest.min_world_size;
  // In one place with the drain, so that both come with the same ticket.
  run.on_drain = [&options](Session& session) {
    session.schedule().RequestCheckpoint(options.run.drain_reason);
    if (options.run.on_drain) options.run.on_drain(session);
  };
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::unique_ptr<ElasticModuleState> state,
      ElasticModuleState::Create(module, &optimizer, options.ddp.zero > 0));
  PieceExchangeOptions pieces;
  pieces.timeout = options.run.recovery.timeout;
  ElasticShards shards(pieces);
  MemberCatchUp catch_up(*module, &optimizer,
                         // Whatever the newcomer does: what travels to it is
                         // in plain text.
                         options.catch_up && options.ddp.zero == 0 &&
                             !EncryptsData(options.run.session));
  run.catch_up = catch_up.target();
  return ElasticRun::Run(
      run, state.get(),
      [&](ElasticGeneration& generation, ElasticRun::Trained* trained) {
        ElasticTraining training(options, module, &optimizer, state.get(),
                                 &shards, &catch_up, &generation);
        return training.Run(body, trained);
      });
}

absl::Status ElasticTraining::Run(const Body& body,
                                  ElasticRun::Trained* trained) {
  COXSWAIN_RETURN_IF_ERROR(MakeWrapper());
  COXSWAIN_RETURN_IF_ERROR(Restore(trained));
  catch_up_.BeginGeneration(generation_);
  return Finish(body(*this), trained);
}

absl::Status ElasticTraining::MakeWrapper() {
  DistributedDataParallelOptions options = options_.ddp;
  options.commit_with_optimizer = true;
  // Recovery has compared or copied them; of a sharded model, what is trained
  // is no part of the state.
  options.same_at_start = options.zero == 0;
  COXSWAIN_RETURN_IF_ERROR(FollowSession(*generation_.session, &options));
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> hook,
                            options.make_hook(*options.plan));
  COXSWAIN_RETURN_IF_ERROR(CheckElasticHook(generation_, *hook));
  COXSWAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<DistributedDataParallel> ddp,
      DistributedDataParallel::Create(module_, generation_.communicator,
                                      std::move(hook), options));
  COXSWAIN_RETURN_IF_ERROR(
      LoadHookState(&generation_, *options.plan, &ddp->hook()));
  COXSWAIN_RETURN_IF_ERROR(
      ddp->accumulator().Restore(state_.record().position));
  ddp_ = std::move(ddp);
  if (ddp_->zero() > 0) {
    COXSWAIN_ASSIGN_OR_RETURN(sharded_,
                              ShardedOptimizer::Create(*ddp_, optimizer_));
  }
  ProgramCheckpoint::Options saving;
  saving.make_hook = options_.ddp.make_hook;
  saving.own_errors = options_.own_errors;
  saving.retention = options_.retention;
  saving.on_report = options_.on_checkpoint;
  checkpoint_ = std::make_unique<RecordCheckpoint>(
      *generation_.session,
      sharded_ != nullptr ? ProgramOf(module_, sharded_.get())
                          : ProgramOf(module_, &optimizer_),
      saving, [this] { return StateOf(*ddp_); }, &state_.record());
  return absl::OkStatus();
}

absl::Status ElasticTraining::Restore(ElasticRun::Trained* trained) {
  COXSWAIN_RETURN_IF_ERROR(RestoreParts(trained));
  // Of a checkpoint's state, too, it is this generation that others know it by.
  const bool of_peers =
      state_.progress() == began_at_ && !trained->went_back_to;
  restored_ = {
      of_peers ? generation_.trained : generation_.session->generation(),
      state_.progress()};
  if (!of_peers) shards_.NoteLoaded(restored_);
  shards_.Forget();
  state_.Keep();
  return absl::OkStatus();
}

absl::Status ElasticTraining::RestoreParts(ElasticRun::Trained* trained) {
  Communicator& communicator = *generation_.communicator;
  // The same on all ranks; what the workers have is newer, or, if they went
  // back to the beginning, right where checkpoints may be wrong.
  if (began_at_ == 0 && generation_.trained == 0) {
    COXSWAIN_ASSIGN_OR_RETURN(
        const bool resumed,
        EndAllIfShared(generation_, checkpoint_->Resume(options_.resume)));
    if (resumed || sharded_ == nullptr) return absl::OkStatus();
    const absl::Status untouched = shards_.CheckUntouched(communicator);
    return absl::IsDataLoss(untouched) ? EndAll(generation_, untouched)
                                       : untouched;
  }
  if (sharded_ == nullptr) return absl::OkStatus();
  const absl::Status restored = shards_.Restore(
      {generation_.trained, began_at_}, communicator, sharded_.get());
  return absl::IsNotFound(restored) ? GoBack(restored, trained) : restored;
}

absl::Status ElasticTraining::GoBack(const absl::Status& lost,
                                     ElasticRun::Trained* trained) {
  RecoveryReport& report = generation_.recovery;
  const int64_t step = state_.step();
  const std::string what = absl::StrCat(
      "a part of the sharded state of step ", step,
      " is on no rank that is left (", lost.message(), ")",
      report.lost.empty() ? "" : "; ", absl::StrJoin(report.lost, "; "));
  COXSWAIN_ASSIGN_OR_RETURN(const std::string from, WhereToGoBack());
  if (from.empty()) {
    return EndAll(generation_,
                  absl::DataLossError(absl::StrCat(
                      what,
                      "; for all to go back to the newest checkpoint, set "
                      "resume to \"",
                      kNewest, "\", and start the job again")));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const bool resumed,
                            EndAllIfShared(generation_, ResumeOrUndo(from)));
  if (!resumed) {
    return EndAll(
        generation_,
        absl::DataLossError(absl::StrCat(
            what,
            "; and the job has no checkpoint to go back to: start it again, "
            "and set checkpoint_every in the plan's terms")));
  }
  trained->went_back_to = state_.progress();
  report.step = state_.step();
  LogWarning("went_back_to_checkpoint", {{"job", generation_.session->job()},
                                         {"generation", report.generation},
                                         {"from_step", step},
                                         {"step", report.step},
                                         {"reason", what}});
  // A worker that drains saves its last step.
  if (report.step != step) {
    report.warnings.push_back(
        absl::StrCat("all ranks went back from step ", step, " to step ",
                     report.step, ", that of the newest checkpoint: ", what));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ElasticTraining::WhereToGoBack() {
  if (options_.resume == kNewest) return options_.resume;
  // A worker that is new does not know what the others have loaded.
  COXSWAIN_ASSIGN_OR_RETURN(const bool loaded,
                            shards_.WasLoaded({generation_.trained, began_at_},
                                              *generation_.communicator));
  return loaded ? options_.resume : "";
}

absl::StatusOr<bool> ElasticTraining::ResumeOrUndo(const std::string& id) {
  std::string untrained;
  COXSWAIN_RETURN_IF_ERROR(SaveUntrained(*module_, &untrained));
  std::vector<double> rates;
  for (const auto& group : optimizer_.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  absl::StatusOr<bool> resumed = checkpoint_->Resume(id);
  if (resumed.ok()) return resumed;
  for (size_t i = 0; i < rates.size(); ++i) {
    optimizer_.param_groups()[i].options().set_lr(rates[i]);
  }
  const absl::Status undone = LoadUntrained(untrained, module_.get());
  if (undone.ok()) return resumed;
  return absl::DataLossError(absl::StrCat(
      resumed.status().message(),
      "; going back to its own state, this worker failed: ", undone.message()));
}

void ElasticTraining::KeepSlices() {
  if (sharded_ == nullptr) return;
  ShardVersion version = restored_;
  version.progress = sliced_.value_or(state_.progress());
  if (version.progress != restored_.progress) {
    version.trained = generation_.session->generation();
  }
  const absl::Status kept = shards_.Keep(*sharded_, version);
  if (!kept.ok()) {
    LogError(
        "slices_not_kept",
        {{"job", generation_.session->job()},
         {"progress", version.progress},
         {"reason", kept.ToString()},
         {"next", "unless a replica has them, all go back to a checkpoint"}});
  }
}

void ElasticTraining::SaveIfAsked() {
  const std::string& reason = ddp_->checkpointing();
  // A step that the body has not taken is no part of the state.
  const bool kept = checkpoint_->IsNoted(ddp_->decided());
  if (reason.empty() || !kept || state_.in_window()) return;
  const absl::Status saved = checkpoint_->Save(reason);
  if (!saved.ok()) LogError("not_saved", {{"reason", saved.ToString()}});
}

bool ElasticTraining::going() const {
  return !ddp_->regrouping() && !ddp_->stopping() && !ddp_->finished();
}

MicroBatch ElasticTraining::Accumulate(const Accumulator::Begin& begin) {
  // A window is counted even if the program left its optimizer step out. Errors
  // stay in the wrapper, and come back from what follows.
  if (ddp_->accumulator().Position().ok() && ddp_->CommitStep().ok()) {
    // What the program has changed since the last step belongs to that.
    Keep();
    SaveIfAsked();
    generation_.before_step(ddp_->hook(), ddp_->plan());
  }
  state_.Begin();
  return ddp_->Accumulate(begin);
}

absl::Status ElasticTraining::CheckGoing() {
  if (!ddp_->regrouping()) return absl::OkStatus();
  notified_ = true;
  return absl::FailedPreconditionError(
      absl::StrCat("the generation ends with the step before this one (",
                   ddp_->decision().regroup,
                   "): the body is to return when going() is false"));
}

absl::Status ElasticTraining::Backward(const ::torch::Tensor& loss) {
  COXSWAIN_RETURN_IF_ERROR(CheckGoing());
  BeginUndeclared();
  return ddp_->Backward(loss);
}

absl::Status ElasticTraining::Backward(const ::torch::Tensor& loss,
                                       const MicroBatch& micro) {
  COXSWAIN_RETURN_IF_ERROR(CheckGoing());
  BeginUndeclared();
  return ddp_->Backward(loss, micro);
}

absl::StatusOr<bool> ElasticTraining::StepWithoutData() {
  COXSWAIN_RETURN_IF_ERROR(CheckGoing());
  BeginUndeclared();
  COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp_->StepWithoutData());
  if (!more) Keep();
  return more;
}

absl::StatusOr<bool> ElasticTraining::Flush() {
  NotePosition();
  CopyUndeclared();
  state_.BeginUndeclared();
  COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp_->Flush());
  if (!more) Keep();
  return more;
}

absl::StatusOr<bool> ElasticTraining::StepOptimizer() {
  const int64_t before = ddp_->optimizer_steps();
  const absl::StatusOr<bool> taken = TakeStep();
  // Also where only what follows the step has failed, such as a change of plan
  // that a peer's end cuts short: the parameters are those of the new step.
  if (taken.ok() || ddp_->optimizer_steps() > before) Keep();
  COXSWAIN_RETURN_IF_ERROR(taken.status());
  generation_.after_step(state_.step());
  error_norms_.AfterStep(*generation_.session, ddp_->hook(), state_.step());
  return taken;
}

absl::StatusOr<bool> ElasticTraining::TakeStep() {
  if (sharded_ == nullptr) {
    catch_up_.BeforeStep(*ddp_);
    return ddp_->StepOptimizer(optimizer_);
  }
  const int64_t taken = ddp_->optimizer_steps();
  const int64_t sliced = sharded_->steps();
  const absl::StatusOr<bool> stepped = sharded_->Step();
  if (sharded_->steps() > sliced && ddp_->optimizer_steps() == taken) {
    sliced_ = checkpoint_->ProgressAt(ddp_->decided());
  }
  return stepped;
}

void ElasticTraining::BeginUndeclared() {
  NotePosition();
  SaveIfAsked();
  CopyUndeclared();
  state_.BeginUndeclared();
}

void ElasticTraining::CopyUndeclared() {
  if (state_.in_window()) return;
  state_.WithKeptBuffers(
      [this] { generation_.before_step(ddp_->hook(), ddp_->plan()); });
}

void ElasticTraining::NotePosition() {
  if (!state_.in_window()) state_.record().NotePosition(ddp_->accumulator());
}

void ElasticTraining::Keep() {
  // False in the middle of a window.
  if (checkpoint_->NoteWindow(ddp_->accumulator(), ddp_->decided())) {
    state_.Keep();
    catch_up_.AfterWindow(*ddp_, state_.progress(), generation_.session);
  }
}

absl::Status ElasticTraining::Finish(absl::Status status,
                                     ElasticRun::Trained* trained) {
  if (ddp_->regrouping()) {
    trained->outcome = ElasticRun::Outcome::kRegroup;
    // The body has gone on until it was notified.
    if (notified_) status = absl::OkStatus();
  }
  NotePosition();
  if (status.ok()) {
    SaveIfAsked();
    // One that failed is no reason not to go on.
    checkpoint_->Finish(options_.save_timeout);
  }
  checkpoint_.reset();
  // Also of a window that was begun and left. What was decided since the last
  // StepOptimizer is no part of the state.
  state_.Rollback();
  if (status.ok() && ddp_->regrouping()) {
    catch_up_.End(state_.progress());
  } else {
    // They would wait for more, and the members for them.
    catch_up_.Drop();
  }
  KeepSlices();
  sharded_.reset();
  COXSWAIN_ASSIGN_OR_RETURN(
      trained->hook_state,
      DistributedDataParallel::TakeHookState(std::move(ddp_)));
  return status;
}

}  // namespace coxswain::torch
