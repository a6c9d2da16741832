#ifndef COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_
#define COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/accumulate/accumulator.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer.h"
#include "client/torch/declared_passes.h"
#include "client/torch/declared_window.h"
#include "client/torch/distributed_data_parallel_options.h"
#include "schedule/plan.h"
#include "schedule/step_gate.h"

namespace coxswain::torch {

class StaticGraph;

// Returns the trainable parameters of a module in registration order, as the
// manifest and the reducer use them. A parameter that is registered twice
// counts once, under its first name. Fails with INVALID_ARGUMENT, naming a
// parameter of an unsupported type.
absl::StatusOr<std::vector<ParameterSpec>> DescribeParameters(
    const ::torch::nn::Module& module);

// Data-parallel training of a libtorch module: when Backward (or Synchronize,
// after a pass that the caller ran) has returned, .grad of every trainable
// parameter holds the average over the ranks, which was exchanged, through a
// hook, while the pass was running.
//
//   auto ddp = DistributedDataParallel::Create(model, &comm, hook, options);
//   for (each batch) {
//     const MicroBatch micro = ddp->Accumulate();
//     auto loss = criterion(model->forward(x), y);
//     COXSWAIN_RETURN_IF_ERROR(ddp->Backward(loss, micro));
//     if (micro.sync) {
//       COXSWAIN_RETURN_IF_ERROR(ddp->StepOptimizer(optimizer).status());
//     }
//     if (ddp->stopping()) break;
//   }
//
// Train (train/torch/train.h) does this and the setup around it.
//
// The module is used as before; its forward needs nothing from this class. An
// averager (local SGD, DiLoCo) lets the ranks' parameters diverge between its
// averages: before a test of the model, or a checkpoint of it, all ranks call
// AverageParameters.
//
// Local steps: where the averager's hook keeps gradients to each rank and the
// averager does not bring all ranks together, a step meets no other rank: no
// collective, no ticket and no wait for a decision. Only the first step of this
// object, those that the plan's checkpoint_every, checksum_every or max_steps
// names, and one at the end of the data are decided on by all ranks.
//
// Schedule: options.plan sets how micro-batches become steps (see
// schedule::Terms), and the gate in options.reducer ends each exchange with a
// decision that is the same on all ranks: commit, or skip because one of them
// asked to (its gradients are then zero, the hook is as it was before, and
// there is no optimizer step), stop, or change to another plan, which is in
// force when FinishStep returns. With sync_each_batch every exchange is a step
// of the hook, carries one micro-batch's gradients, and is added to .grad; one
// that is skipped makes the window's optimizer step a skipped one.
//
// Where the caller decides whether a step is applied, it writes, in place of
// Backward,
//
//     loss.backward();                                   // may throw
//     COXSWAIN_RETURN_IF_ERROR(ddp->Synchronize());      // grads are averages
//     COXSWAIN_RETURN_IF_ERROR(ddp->FinishStep(apply, why));
//
// Which backward passes exchange is declared, never guessed: with Accumulate,
// those whose MicroBatch exchanges; without it, all but those in a NoSync
// scope. The others add to .grad locally, and the next exchange carries the
// sum. A step has one exchanging pass; a second one before FinishStep, or for
// the same declared micro-batch, is an error. A micro-batch without
// declaration counts 1 in averages, and its exchange one step; a plan with
// weights, or with sync_each_batch and windows, needs declarations.
//
// A program that runs a window's passes in an order of its own, as a pipeline
// does, declares the whole window at once: DeclareWindow.
//
// Unused parameters contribute zeros (or what stood in .grad) and get the
// average; one that no rank used has zeros, not an undefined .grad. With
// find_unused_parameters its .grad stays as it is; Backward then looks for them
// before the pass, so that their buckets need not wait for its end.
//
// Errors: within a backward pass this class throws nothing. An error is kept,
// the pass runs to its end, and Backward or Synchronize returns it; the
// gradients are then undefined, and the communicator cannot be used. Errors of
// Accumulate, and of the checks before a pass or an exchange, are kept as well:
// a rank whose step did not run cannot continue beside those whose step did.
// Any other call that is refused changes nothing.
//
// Threading: one thread, the one that calls backward. Several instances in
// several threads are independent.
class DistributedDataParallel {
 public:
  // Copies rank 0's parameters and buffers to all ranks, unless
  // options.same_at_start: all ranks call it.
  // `communicator` outlives the object; the module is shared. Replacing the
  // module's parameters afterwards (module->to(dtype)) is not noticed. The
  // averager, if any, is the one that belongs to the hook. Fails with
  // INVALID_ARGUMENT if the hook needs an averager and there is none, if
  // options.make_hook makes another hook of options.plan than this one, or if
  // the options ask for a schedule that contradicts options.plan.
  static absl::StatusOr<std::unique_ptr<DistributedDataParallel>> Create(
      std::shared_ptr<::torch::nn::Module> module, Communicator* communicator,
      std::unique_ptr<Hook> hook,
      const DistributedDataParallelOptions& options = {},
      std::unique_ptr<Averager> averager = nullptr);

  ~DistributedDataParallel();

  // Ends the wrapper and returns its hook's own state (Hook::SaveOwn), as it
  // was after the last step that was committed; with reducer.hybrid that of
  // this rank's slices. Fails as Hook::SaveOwn.
  static absl::StatusOr<HookState> TakeHookState(
      std::unique_ptr<DistributedDataParallel> ddp);

  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Begins an epoch: ended() is false again. With the number of its
  // micro-batches, if known: see Accumulator::BeginEpoch.
  absl::Status BeginEpoch(
      int64_t micro_batches = std::numeric_limits<int64_t>::max());

  // Begins the next micro-batch: called before its forward. One of weight 0 is
  // empty: Backward runs no pass for it; a caller that runs backward omits it,
  // and calls Synchronize. If all of a step's are empty, the step is skipped.
  // Returns whether its backward pass exchanges, and what to multiply its mean
  // loss by. A misuse is kept and returned by Backward or Synchronize: another
  // micro-batch before this one's backward; one after the end of the data or
  // max_steps.
  MicroBatch Accumulate(const Accumulator::Begin& begin = {});

  // Declares all micro-batches of the next window at once, in place of
  // Accumulate for each, and announces its exchange at once. They are as many
  // as accumulator().micro_batches_due(), or fewer with end_of_data at the last
  // one. Returns what Accumulate would, for each. The caller runs the forwards
  // and backward passes itself (loss.backward(), torch::autograd::backward), in
  // any order and of any parts of the model; they add up locally, and for each
  // parameter the last one is named, so that its gradient leaves right after
  // it:
  //
  //   COXSWAIN_ASSIGN_OR_RETURN(const std::vector<MicroBatch> micro,
  //                             ddp->DeclareWindow(begins));
  //   ...                                      // all passes but the last ones
  //   COXSWAIN_RETURN_IF_ERROR(ddp->BeginLastPass(of_this_stage));
  //   (loss * micro[i].loss_scale).backward();
  //   COXSWAIN_RETURN_IF_ERROR(ddp->EndLastPass());
  //   ...                                      // of other stages
  //   COXSWAIN_RETURN_IF_ERROR(ddp->Synchronize());
  //   if (micro.back().sync) {
  //     COXSWAIN_RETURN_IF_ERROR(ddp->FinishStep());
  //     COXSWAIN_RETURN_IF_ERROR(ddp->StepOptimizer(optimizer).status());
  //   }
  //
  // Where the window does not end (tail=carry, or drop, at the end of the data)
  // nothing is announced, and Synchronize only ends the declaration. With
  // find_unused_parameters a parameter counts as used if any pass of the window
  // reached it. A misuse is an error that is kept: another declaration, or
  // Backward, before the window's end; another number of micro-batches; one
  // after the end of the data or max_steps; and what does not go with it:
  // sync_each_batch, static_graph, overlapped_optimizer, and zero=2 without
  // force_zero.
  absl::StatusOr<std::vector<MicroBatch>> DeclareWindow(
      absl::Span<const Accumulator::Begin> micro_batches);

  // In a declared window: the backward passes until EndLastPass are the last
  // ones of these parameters, by their numbers in parameters(), and one of them
  // at most reaches each: the gradient is ready as soon as that has added to
  // it. Others still add up. Parameters whose gradients the caller completes
  // without autograd, as those of tied weights, have a last pass of their own
  // that runs nothing. Errors are kept: no declared window, a last pass within
  // another, a parameter that does not exist, or named twice in one window.
  absl::Status BeginLastPass(const std::vector<int>& parameters);
  // Marks those of the last pass ready that it did not reach. Parameters that
  // were in none are ready in Synchronize.
  absl::Status EndLastPass();

  // Sets the hash of the pipeline schedule that the next declared windows run,
  // which their tickets have, for comparison; 0: none.
  void SetPipelineHash(uint64_t hash) { pipeline_hash_ = hash; }

  // Sets the factor that the program multiplies the losses of the next windows
  // by, beside MicroBatch::loss_scale: gradients are divided by it in the one
  // pass over them that rescales them, before hook, norm and vote. What stands
  // in .grad at a window's end carries it. At first it is 1. Between windows,
  // with nothing summed up: FAILED_PRECONDITION otherwise, unless it stays as
  // it is. Fails with INVALID_ARGUMENT if it is not finite and above 0. An
  // error changes nothing. See LossScale.
  absl::Status SetGradientScale(double scale);

  // Called in place of Backward, if this rank's loss cannot be computed: the
  // rank still takes part in the window's exchange, and all ranks skip its
  // step; a local step is skipped by this rank alone. In a declared window it
  // is called in place of the passes that are left, and of Synchronize and
  // FinishStep. Returns OK, as for a step that was skipped; or `why` itself, as
  // an error that ends the job, if other ranks cannot learn of it: without a
  // gate, or with enforcement=off, and in a declared window, which has been
  // announced by then, without commit_vote.
  absl::Status FailMicroBatch(const absl::Status& why);

  // Runs loss.backward(), unless the micro-batch is empty. If this pass
  // exchanges, waits for the averages and ends the step for the hook
  // (FinishStep). Fails with INTERNAL if libtorch throws, and with
  // FAILED_PRECONDITION, before the pass, if the micro-batch has run its
  // backward, or was not declared and has to be, or its forward ran outside it
  // (options.forward_in_scope).
  absl::Status Backward(const ::torch::Tensor& loss);
  // Does so for the mean loss of this micro-batch, as its forward pass returned
  // it: multiplies it by micro.loss_scale.
  absl::Status Backward(const ::torch::Tensor& loss, const MicroBatch& micro);

  // Returns the result of the exchange in the backward pass just run, with the
  // averages in .grad. If that pass reached no parameter, exchanges now.
  // Returns OK and does nothing after a pass that does not exchange.
  absl::Status Synchronize();

  // Ends a synchronised step as all ranks decide: Commit of the hook, or
  // Rollback; see skipped(). Where the norm for max_norm comes with the
  // decision (ReducerOptions::counts_in_norm) gradients are clipped here.
  // apply=false asks for the latter, a vote that needs the plan's commit_vote;
  // without a gate the caller ensures that all ranks ask for the same. In a
  // local step the decision is this rank's alone, and the step counts for hook
  // and averager all the same.
  absl::Status FinishStep(bool apply = true, absl::string_view why = "");

  // Returns whether the optimizer step of the current window, or of the one
  // that ended last, is not to be taken, for the reason in decision().
  bool skipped() const { return !decision_.commit; }
  // Returns whether all ranks stop after this step: decision().stop is the
  // reason.
  bool stopping() const { return !decision_.stop.empty(); }
  // Returns whether the generation ends after this step, because its members
  // change: decision().regroup is the reason. ElasticTraining handles that.
  bool regrouping() const { return !decision_.regroup.empty(); }
  // Returns why all ranks save their state once this step has been taken;
  // empty: they do not. ModuleCheckpoint saves it.
  const std::string& checkpointing() const { return decision_.checkpoint; }
  // Returns the number of exchanges whose decision this rank has: that of all
  // ranks or, in a local step, its own.
  int64_t decided() const { return decided_; }
  // Returns the last decision, which has the newcomers of all decisions of its
  // window.
  const schedule::Decision& decision() const { return decision_; }
  // With end_at_first: returns whether another rank ran out of data, so that
  // the epoch has ended. The window's gradients are zero. Until BeginEpoch, or
  // the next micro-batch.
  bool ended() const { return ended_; }
  // Returns whether all of the plan's max_steps are done.
  bool finished() const { return accumulator_.finished(); }
  // Returns the plan in force.
  const schedule::Plan& plan() const { return accumulator_.plan(); }

  // Takes the window's optimizer step, unless it was skipped or the epoch has
  // ended: step, zero_grad, AfterOptimizerStep. Returns false if nothing was to
  // be done. Fails with FAILED_PRECONDITION if gradients have not been
  // exchanged, or were stepped by already. A program that steps by itself
  // follows the same order.
  absl::StatusOr<bool> StepOptimizer(::torch::optim::Optimizer& optimizer);
  // Takes the window's step by `step`, in place of the optimizer's: see
  // StepOptimizer. For ShardedOptimizer.
  absl::StatusOr<bool> StepBy(const std::function<absl::Status()>& step);
  // Returns how many optimizer steps it has taken, including one after which it
  // failed.
  int64_t optimizer_steps() const { return optimizer_steps_; }
  // With commit_with_optimizer, if the program leaves an optimizer step out:
  // commits the hook's step all the same. Returns OK and does nothing
  // otherwise.
  absl::Status CommitStep();

  // Ends, at the end of the data, a window that was cut short, if the
  // accumulator was not given the data's length, by the plan's tail. flush:
  // exchanges it, with the right divisor, and finishes the step; returns true
  // if StepOptimizer is next. carry leaves it as it is, drop is DropWindow. All
  // ranks call it. All of .grad is of the window, so it was cleared after the
  // last step. Fails with FAILED_PRECONDITION if a micro-batch has not run its
  // backward, and, with tail=flush and sync_each_batch, in the middle of a
  // window: everything was exchanged, and no exchange is left to decide its
  // step.
  absl::StatusOr<bool> Flush();

  // Forgets the window that was begun, if a loop over data is left early: .grad
  // is set to zero. Nothing is exchanged; all ranks call it.
  absl::Status DropWindow();

  // With uneven_data, once this rank's data has ended: takes part in the peers'
  // next step with gradients of zero. Returns true if some rank had data: the
  // averages are in .grad and the step is finished, so StepOptimizer is next.
  // Returns false if all ranks are out of data (with end_at_first: one is): all
  // leave the epoch in this step, which does not count if no rank had data.
  // Fails with FAILED_PRECONDITION in the middle of a window.
  //
  //   COXSWAIN_RETURN_IF_ERROR(ddp->BeginEpoch());
  //   for (each batch, unless ddp->ended() or ddp->stopping()) { ... }
  //   while (!ddp->ended() && !ddp->finished() && !ddp->stopping()) {
  //     COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp->StepWithoutData());
  //     if (!more) break;
  //     COXSWAIN_RETURN_IF_ERROR(ddp->StepOptimizer(optimizer).status());
  //   }
  absl::StatusOr<bool> StepWithoutData();

  // Called between steps, on all ranks alike, after the module got further
  // trainable parameters, parameters were frozen, or buffers were added,
  // removed or changed their shape: compares all of them over the ranks, copies
  // rank 0's values of the new ones, and divides the buckets again. Hook and
  // averager keep their state for those that stay, by name, shape and type,
  // .grad its local sums; an averager averages the ranks' parameters before.
  absl::Status UpdateParameters();

  // Called between steps, on all ranks alike: see Reducer::ChangeHook. Not with
  // an averager. Destroys the old hook if it succeeds, the new one if it fails.
  absl::Status ChangeHook(std::unique_ptr<Hook> hook, bool carry_state);
  // Likewise: see Reducer::ChangeBuckets.
  absl::Status ChangeBuckets(const BucketPlanOptions& buckets);

  // Counts an optimizer step, and averages the trainable parameters over the
  // ranks when the averager is due. Called once after each step that was taken,
  // on all ranks; returns OK and does nothing without an averager.
  absl::Status AfterOptimizerStep();

  // Makes the parameters of all ranks equal if they differ, and then, with
  // broadcast_buffers, copies rank 0's buffers to all ranks. All ranks call it.
  absl::Status AverageParameters();

  // Backward passes within the scope only sum up locally.
  NoSyncScope NoSync();

  // Returns the accumulator, for BeginEpoch, positions and other streams.
  Accumulator& accumulator() { return accumulator_; }
  // Returns the hook, for SaveState and LoadState, between steps. With
  // reducer.hybrid its state is that of all slices: Reducer::hook.
  Hook& hook() {
    return options_.reducer.hybrid.shard != nullptr ? reducer_->hook() : *hook_;
  }
  // Returns the averager; null if there is none.
  Averager* averager() { return averager_.get(); }
  const Reducer& reducer() const { return *reducer_; }
  Communicator& communicator() { return *communicator_; }
  // Returns the trainable parameters, by the reducer's numbers.
  std::vector<::torch::Tensor> parameters() const;
  // Returns the option.
  int zero() const { return options_.zero; }
  // Returns the option of that name.
  bool offload() const { return options_.offload; }
  // As Reducer::GatherSlices. An error is kept.
  absl::Status GatherSlices(const std::vector<Span>& wholes);

 private:
  struct Parameter;  // a trainable one
  // The phase of the current step's exchange. kBegun: before the pass;
  // kRunning: in the pass, or it threw; kEnded: it returned.
  enum class Phase { kNone, kBegun, kRunning, kEnded, kAveraged };

  DistributedDataParallel(std::shared_ptr<::torch::nn::Module> module,
                          std::unique_ptr<Hook> hook,
                          std::unique_ptr<Averager> averager,
                          Accumulator accumulator,
                          const DistributedDataParallelOptions& options);
  absl::Status Connect(Communicator* communicator);
  // Returns the user's reducer options with what the wrapper adds.
  absl::StatusOr<ReducerOptions> CompleteReducerOptions();
  // Completes the options if the parameters are on a GPU. Fails with
  // UNIMPLEMENTED for an option that is for the CPU only.
  absl::Status CompleteForDevice(ReducerOptions* options) const;
  absl::Status ConfigureAverager();
  // Runs the averager's part of AverageParameters; returns whether the ranks'
  // parameters differed.
  absl::StatusOr<bool> UniteParameters();
  // Copies root's values to all ranks.
  absl::Status Broadcast(const std::vector<::torch::Tensor>& tensors, int root);
  // Copies rank 0's values of what was added to the module since the last call,
  // unless all ranks have the same.
  absl::Status BroadcastNews(bool same = false);
  // Fails with FAILED_PRECONDITION if a buffer has changed its form since the
  // ranks have compared them.
  absl::Status BroadcastBuffers();
  // Returns what all ranks must have alike, beside the parameters.
  std::map<std::string, std::string> AgreedByAll() const;
  // Runs `action` on the parameters' values, and keeps its error.
  absl::Status WithValues(
      const std::function<absl::Status(const std::vector<Span>&)>& action);

  // Brings parameters_ in line with the module. Throws what libtorch throws.
  void TakeParameters();
  std::unique_ptr<Parameter> Register(const ::torch::Tensor& tensor);
  void Release(Parameter& parameter);
  // Releases the gradients of parameters that the module does not train any
  // more.
  void ReleaseUntrained();
  // Points the gradients to the reducer's layout.
  void PointGradients();

  // A declared window: see ddp_window.cc.
  absl::Status CheckWindowOptions() const;
  absl::Status CheckDeclareWindow() const;
  absl::Status OnWindowGradient(Parameter& parameter);
  absl::Status SynchronizeWindow();
  absl::Status FailWindow(const absl::Status& why);

  bool exchanges() const { return no_sync_depth_ == 0 && passes_.exchanges(); }
  // Returns whether a rank can ask the others to skip a step.
  bool can_skip() const;
  // Fails if the next pass must not exchange.
  absl::Status CheckExchange() const;
  // Runs in place of a declared micro-batch's backward pass.
  absl::Status RunWithoutPass();
  absl::Status CheckBetweenSteps(absl::string_view what) const;
  // Fails if local sums have not been exchanged.
  absl::Status CheckNothingLocal() const;
  absl::Status CheckForward(const ::torch::Tensor& loss) const;
  // Fails if micro-batches are not declared and the plan requires it.
  absl::Status CheckUndeclared() const;
  // Returns what the exchange that begins carries, and how it is announced.
  absl::StatusOr<WindowSum> SumToExchange();
  absl::StatusOr<schedule::Ticket> TicketOf(const WindowSum& sum) const;
  // Returns the checksum of those parameters that count.
  absl::StatusOr<uint64_t> Checksum(
      const std::function<bool(const ParameterSpec&)>& counts) const;
  // Returns the factor of the gradients in the current exchange, as far as the
  // reducer does not weigh them.
  double rescale() const;
  // Returns whether the reducer multiplies the gradients by a factor of the
  // rank.
  bool weighs() const;
  absl::Status BeginReducerStep(const WindowSum& sum);
  absl::Status BeginStep();
  // Begins the step, and marks what the pass will not reach.
  absl::Status MarkUnreached(const ::torch::Tensor& loss);
  // In the backward pass, after the parameter's .grad has been added to.
  // `incoming`: what libtorch has added to .grad.
  void OnGradient(Parameter& parameter, const ::torch::Tensor& incoming);
  absl::Status NoticePass();
  absl::Status EnterPass();
  absl::Status Arrived(Parameter& parameter);
  absl::Status Mark(int parameter);
  absl::Status MarkOrZeros(int parameter);
  // The gradients of the whole pass, if there was one, are ready.
  void FinishExchange(bool of_pass);
  absl::Status MarkRest(bool of_pass);
  void TakeAverages();
  // After averages have been clipped where the reducer has them.
  void TakeClipped();
  // In the exchange thread.
  absl::Status StepOptimizers(const Bucket& bucket);
  // Fails with FAILED_PRECONDITION if the hook and the averager that it needs
  // are not in the same step, or the averager missed one.
  absl::Status CheckAverager();

  // The end of an exchange: see ddp_decision.cc.
  absl::Status CheckVote(bool apply) const;
  schedule::Vote VoteOf(bool apply, absl::string_view why) const;
  // Returns which averages are not finite; empty if all are.
  std::string NonFinite() const;
  bool AverageIsFinite(size_t parameter) const;
  // Returns whether ranks had data for the step, all of weight 0.
  bool AllWereEmpty() const;
  // Ends the exchange for the hook, the buffers and .grad.
  absl::Status EndExchange(const schedule::Decision& decision);
  // Returns whether an exchange whose decision is to commit is committed only
  // with the optimizer's step.
  bool commits_later() const;
  // Updates the window's decision, which follows from those of its exchanges.
  void NoteDecision(const schedule::Decision& decision);
  // Skips a local step on this rank: it counts all the same, as on the other
  // ranks.
  absl::Status SkipLocal(const std::string& why, schedule::Decision* decision);
  // Where a micro-batch of the window was skipped before.
  void NoteAfterSkip(const schedule::Decision& decision);
  absl::Status EndWindow();
  // Sets .grad of all parameters to zero.
  void ClearGradients();
  // sync_each_batch: makes .grad that of the next micro-batch alone, and then
  // the sum.
  void SetAveragesAside();
  void AddAverages();

  // The averages of the own slices, with zero: see ddp_slices.cc. Empty
  // without.
  std::vector<::torch::Tensor> OwnSlices() const;
  bool OwnSliceIsFinite(int parameter) const;

  // Changes of the plan: see ddp_changes.cc.
  bool ChangesHook(const schedule::Plan& plan) const;
  // Fails with FAILED_PRECONDITION if slices depend on the layout.
  absl::Status CheckWhole(absl::string_view what) const;
  // Changes to next_plan_, if there is one and it is due.
  absl::Status FollowNextPlan();
  absl::Status FollowPlan(const schedule::Plan& plan);
  absl::Status FollowHook(const schedule::Plan& plan);
  absl::Status ReplaceHook(std::unique_ptr<Hook> hook,
                           std::unique_ptr<Averager> averager, bool carry);
  // Keeps the first error, and notifies the peers.
  void Keep(const absl::Status& status);
  // Keeps an error that all ranks find by themselves.
  void KeepShared(const absl::Status& status);

  const std::shared_ptr<::torch::nn::Module> module_;
  const DistributedDataParallelOptions options_;
  std::unique_ptr<Hook> hook_;
  std::unique_ptr<Averager> averager_;
  Accumulator accumulator_;
  Communicator* communicator_ = nullptr;
  // Replaces, in the reducer, a hook that has an averager.
  std::unique_ptr<Hook> paired_hook_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<std::unique_ptr<Parameter>> parameters_;  // as the reducer's
  // Null without the option.
  std::unique_ptr<StaticGraph> static_graph_;
  // What has been broadcast, by name.
  std::map<std::string, ::torch::Tensor> known_;
  // The type and shape of each buffer, as the ranks have compared them last.
  std::map<std::string, std::pair<::torch::ScalarType, std::vector<int64_t>>>
      buffer_forms_;
  int64_t layout_version_ = -1;  // that the gradients follow
  absl::Status status_;          // the first error
  Phase phase_ = Phase::kNone;
  DeclaredPasses passes_;
  DeclaredWindow window_;
  uint64_t pipeline_hash_ = 0;
  double gradient_scale_ = 1;
  int no_sync_depth_ = 0;
  GraphMark scope_mark_;  // when the outermost NoSync scope was opened
  WindowSum sum_;         // of the exchange begun last
  bool local_ = false;    // its step: see IsLocalStep
  bool meets_ = true;     // all ranks hold the same after it
  schedule::Decision decision_;
  int64_t decided_ = 0;
  int64_t optimizer_steps_ = 0;
  // The hook's step awaits the optimizer's: see commit_with_optimizer.
  bool commit_due_ = false;
  // The decision's, until the window and what belongs to it are over.
  std::optional<schedule::Plan> next_plan_;
  bool ended_ = false;
  // A window's step was decided and exchanged, and not taken yet.
  bool step_due_ = false;
  // A step was applied, and the averager not called yet.
  bool averager_due_ = false;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_
