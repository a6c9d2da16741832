#ifndef COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_
#define COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/accumulate/accumulator.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer.h"

namespace coxswain::torch {

class StaticGraph;

// The trainable parameters of a module in registration order, as the manifest
// and the reducer know them. A parameter that is registered twice counts once,
// under its first name. INVALID_ARGUMENT names one of an unsupported type.
absl::StatusOr<std::vector<ParameterSpec>> DescribeParameters(
    const ::torch::nn::Module& module);

struct DistributedDataParallelOptions {
  // Among them: find_unused_parameters, uneven_inputs, statistics, max_norm.
  // on_average and settings are this class's own.
  ReducerOptions reducer;
  int accumulation_steps = 1;
  // Each .grad is a view into its bucket: saves one copy of the gradients and
  // their memory. They must not be detached or replaced while they hold local
  // sums. After this object's end they are tensors of their own again.
  bool gradient_as_bucket_view = false;
  // The same parameters are used, equally often, in each pass that exchanges,
  // also where parts are computed again in the backward pass and give a
  // parameter several gradients. Learned in the first such pass, in which all
  // is exchanged at the end; a later pass that differs is an error.
  bool static_graph = false;
  // After each step that exchanged, all ranks take over the module's buffers
  // (running means) of rank 0, or of the first rank that still has data. At
  // the start they always do.
  bool broadcast_buffers = true;
  // If set, an optimizer of its own for each parameter, made by this function,
  // takes its step as soon as the parameter's average stands, while other
  // buckets still travel; its .grad is then as after zero_grad. The caller has
  // no optimizer. INVALID_ARGUMENT together with what needs the whole step
  // first: max_norm, find_unused_parameters, an averager; FinishStep(false)
  // is an error. Called by Create and UpdateParameters; the optimizers step in
  // the exchange thread.
  std::function<std::unique_ptr<::torch::optim::Optimizer>(
      const ::torch::Tensor&)>
      overlapped_optimizer;
  // If not empty, each rank writes a trace of its steps: see TraceFile.
  std::string trace_file;
};

// Data-parallel training of a libtorch module: when Backward (or Synchronize,
// after a pass that the caller ran) has returned, .grad of every trainable
// parameter holds the average over the ranks, which was exchanged, through a
// hook, while the pass was running.
//
//   auto ddp = DistributedDataParallel::Create(model, &comm, hook, options);
//   for (each batch) {
//     const MicroBatch micro = ddp->Accumulate();
//     auto loss = criterion(model->forward(x), y) / micro.window;
//     COXSWAIN_RETURN_IF_ERROR(ddp->Backward(loss));
//     if (!micro.sync) continue;
//     optimizer.step();
//     optimizer.zero_grad();
//     COXSWAIN_RETURN_IF_ERROR(ddp->AfterOptimizerStep());
//   }
//
// AfterOptimizerStep is for an averager (local SGD, DiLoCo), which lets the
// ranks' parameters go apart between its averages; without one it does
// nothing. Before a test of the model, or a checkpoint of it, all ranks call
// AverageParameters.
//
// The module is used as before; its forward needs nothing from this class.
//
// Where the caller decides whether a step is applied (a vote on non-finite
// gradients), it writes, in place of Backward,
//
//     loss.backward();                                   // may throw
//     COXSWAIN_RETURN_IF_ERROR(ddp->Synchronize());      // grads are averages
//     COXSWAIN_RETURN_IF_ERROR(ddp->FinishStep(apply));
//
// Which backward passes exchange is declared, never guessed: with Accumulate,
// those whose MicroBatch says sync; without it, all but those in a NoSync
// scope. The others add to .grad locally, and the next exchange carries the
// sum. A step has one exchanging pass; a second one before FinishStep, or for
// the same declared micro-batch, is an error.
//
// Unused parameters contribute zeros (or what stood in .grad) and get the
// average; one that no rank used has zeros, not an undefined .grad. With
// find_unused_parameters its .grad stays as it is; Backward then looks for them
// before the pass, so that their buckets need not wait for its end.
//
// Errors: within a backward pass nothing is thrown on our behalf. An error is
// kept, the pass runs to its end, and Backward or Synchronize returns it; the
// gradients are then of no use, and neither is the communicator.
//
// Threading: one thread, the one that calls backward. Several instances in
// several threads are independent.
class DistributedDataParallel {
 public:
  // Copies rank 0's parameters and buffers to all ranks: all ranks call it.
  // `communicator` outlives the object; the module is shared. Replacing the
  // module's parameters afterwards (module->to(dtype)) is not noticed. The
  // averager, if any, is the one that belongs to the hook; INVALID_ARGUMENT if
  // the hook needs one and there is none.
  static absl::StatusOr<std::unique_ptr<DistributedDataParallel>> Create(
      std::shared_ptr<::torch::nn::Module> module, Communicator* communicator,
      std::unique_ptr<Hook> hook,
      const DistributedDataParallelOptions& options = {},
      std::unique_ptr<Averager> averager = nullptr);

  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Begins the next micro-batch: call it before its forward. Says whether its
  // backward pass exchanges. A misuse is kept and returned by Backward or
  // Synchronize; the micro-batch then is one that does not exchange.
  MicroBatch Accumulate();

  // Runs loss.backward(). If this pass exchanges, waits for the averages and
  // ends the step for the hook (FinishStep). INTERNAL if libtorch throws.
  absl::Status Backward(const ::torch::Tensor& loss);

  // The result of the exchange in the backward pass just run, with the
  // averages in .grad. If that pass reached no parameter, exchanges now. OK
  // and nothing to do after a pass that does not exchange.
  absl::Status Synchronize();

  // Ends a synchronised step: Commit of the hook if `apply`, otherwise as if
  // the step had not been; the caller then skips its optimizer step.
  absl::Status FinishStep(bool apply = true);

  // At the end of the data, when its length was not told to the accumulator:
  // exchanges what a window that was cut short has summed up, with the right
  // divisor, and finishes the step. True: there was something, take an
  // optimizer step. All ranks call it. All that stands in .grad is of the
  // window, so it was cleared after the last step, and every micro-batch that
  // was declared counts. FAILED_PRECONDITION if the last one was to exchange,
  // and has not run its backward.
  absl::StatusOr<bool> Flush();

  // Forgets the window that was begun, where a loop over data is left early:
  // .grad is set to zero. Nothing is exchanged; all ranks call it.
  absl::Status DropWindow();

  // With uneven_inputs, once this rank's data has ended: takes part in the
  // peers' next step with gradients of zero. True: some rank had data; the
  // averages stand in .grad and the step is finished, so take an optimizer
  // step as they do. False: all ranks are out of data, and all of them return
  // this from the same call. FAILED_PRECONDITION in the middle of a window.
  //
  //   for (each batch) { ... }
  //   while (true) {
  //     COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp->StepWithoutData());
  //     if (!more) break;
  //     optimizer.step();
  //   }
  absl::StatusOr<bool> StepWithoutData();

  // Between steps, on all ranks alike, after the module got further trainable
  // parameters, or parameters were frozen: compares them over the ranks, takes
  // over rank 0's values of the new ones (and of new buffers), and divides the
  // buckets anew. The hook keeps its state for those that stay, .grad its local
  // sums; an averager brings the ranks together and is configured anew.
  absl::Status UpdateParameters();

  // Between steps, on all ranks alike: see Reducer::ChangeHook. Not with an
  // averager. The old hook is gone if it succeeds, the new one if it fails.
  absl::Status ChangeHook(std::unique_ptr<Hook> hook, bool carry_state);
  // Likewise: see Reducer::ChangeBuckets.
  absl::Status ChangeBuckets(const BucketPlanOptions& buckets);

  // Counts an optimizer step, and averages the trainable parameters over the
  // ranks where the averager's turn has come. To be called once after each
  // step that was taken, on all ranks; OK and nothing to do without an
  // averager.
  absl::Status AfterOptimizerStep();

  // Brings the parameters of all ranks together if they are apart. All ranks
  // call it. Buffers, such as running means, stay each rank's own.
  absl::Status AverageParameters();

  // Backward passes within the scope only sum up locally.
  class NoSyncScope {
   public:
    explicit NoSyncScope(int* depth) : depth_(depth) { ++*depth_; }
    ~NoSyncScope() { --*depth_; }
    NoSyncScope(const NoSyncScope&) = delete;
    NoSyncScope& operator=(const NoSyncScope&) = delete;

   private:
    int* depth_;
  };
  [[nodiscard]] NoSyncScope NoSync() { return NoSyncScope(&no_sync_depth_); }

  // For BeginEpoch, positions and other streams.
  Accumulator& accumulator() { return accumulator_; }
  // For SaveState and LoadState, between steps.
  Hook& hook() { return *hook_; }
  // Null if there is none.
  Averager* averager() { return averager_.get(); }
  const Reducer& reducer() const { return *reducer_; }

 private:
  struct Parameter;  // a trainable one
  // Where the exchange of the current step stands. kBegun: before the pass;
  // kRunning: in the pass, or it threw; kEnded: it did not.
  enum class Phase { kNone, kBegun, kRunning, kEnded, kAveraged };

  DistributedDataParallel(std::shared_ptr<::torch::nn::Module> module,
                          std::unique_ptr<Hook> hook,
                          std::unique_ptr<Averager> averager,
                          Accumulator accumulator,
                          const DistributedDataParallelOptions& options);
  absl::Status Connect(Communicator* communicator);
  // What the reducer is told beyond the user's options.
  absl::StatusOr<ReducerOptions> CompleteReducerOptions(int rank);
  // Rank root's values.
  absl::Status Broadcast(const std::vector<::torch::Tensor>& tensors, int root);
  // Rank 0's values of what the module has got since the last call.
  absl::Status BroadcastNews();
  absl::Status BroadcastBuffers();
  // Runs `action` on the parameters' values, and keeps its error.
  absl::Status WithValues(
      const std::function<absl::Status(const std::vector<Span>&)>& action);

  // Brings parameters_ in line with the module. Throws what libtorch throws.
  void TakeParameters();
  std::unique_ptr<Parameter> Register(const ::torch::Tensor& tensor);
  void Release(Parameter& parameter);
  // Follows the reducer's layout.
  void PointGradients();

  bool exchanges() const { return no_sync_depth_ == 0 && sync_; }
  absl::Status CheckBetweenSteps(absl::string_view what) const;
  // Nothing has been summed up that was not exchanged.
  absl::Status CheckNothingLocal() const;
  // FAILED_PRECONDITION for a pass that exchanges after the declared one did.
  absl::Status CheckDeclared() const;
  absl::Status BeginStep();
  // Begins the step, and marks what the pass will not reach.
  absl::Status MarkUnreached(const ::torch::Tensor& loss);
  // In the backward pass, after the parameter's .grad has been added to.
  void OnGradient(Parameter& parameter);
  absl::Status EnterPass();
  absl::Status Arrived(Parameter& parameter);
  absl::Status Mark(int parameter);
  absl::Status MarkOrZeros(int parameter);
  // The gradients of the whole pass, if there was one, are there.
  void FinishExchange(bool of_pass);
  absl::Status MarkRest(bool of_pass);
  void TakeAverages();
  // In the exchange thread.
  absl::Status StepOptimizers(const Bucket& bucket);
  // FAILED_PRECONDITION if the hook and the averager that it needs are not in
  // the same step, or the averager missed one.
  absl::Status CheckAverager();
  // Keeps the first error, and lets the peers know.
  void Keep(const absl::Status& status);

  const std::shared_ptr<::torch::nn::Module> module_;
  const DistributedDataParallelOptions options_;
  std::unique_ptr<Hook> hook_;
  const std::unique_ptr<Averager> averager_;
  Accumulator accumulator_;
  Communicator* communicator_ = nullptr;
  std::unique_ptr<Reducer> reducer_;
  std::vector<std::unique_ptr<Parameter>> parameters_;  // as the reducer's
  // Null without the option.
  std::unique_ptr<StaticGraph> static_graph_;
  // What has been broadcast, by name.
  std::map<std::string, ::torch::Tensor> known_;
  bool has_buffers_ = false;
  int64_t layout_version_ = -1;  // that the gradients follow
  absl::Status status_;          // the first error
  Phase phase_ = Phase::kNone;
  bool sync_ = true;  // what the declared micro-batch says
  // A micro-batch was declared that exchanges, and has not yet.
  bool exchange_due_ = false;
  // One was declared that does not, and the window is not over.
  bool in_window_ = false;
  // The micro-batch declared last has exchanged its gradients.
  bool spent_ = false;
  // A step was applied, and the averager has not heard of it.
  bool averager_due_ = false;
  int no_sync_depth_ = 0;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_
