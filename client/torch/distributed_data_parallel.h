#ifndef COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_
#define COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/accumulate/accumulator.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer.h"

namespace coxswain::torch {

// The trainable parameters of a module in registration order, as the manifest
// and the reducer know them. A parameter that is registered twice counts once,
// under its first name. INVALID_ARGUMENT names one of an unsupported type.
absl::StatusOr<std::vector<ParameterSpec>> DescribeParameters(
    const ::torch::nn::Module& module);

struct DistributedDataParallelOptions {
  ReducerOptions reducer;
  int accumulation_steps = 1;
  // Each .grad is a view into its bucket: saves one copy of the gradients and
  // their memory. They must not be detached or replaced while they hold local
  // sums. After this object's end they are tensors of their own again.
  bool gradient_as_bucket_view = false;
};

// Data-parallel training of a libtorch module: when a backward pass has ended,
// .grad of every trainable parameter holds the average over the ranks, which
// was exchanged, through a hook, while the pass was running.
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
// sum. A step has one exchanging pass; a second one before FinishStep is an
// error.
//
// Unused parameters contribute zeros (or what was summed up locally) and get
// the average; one that no rank used has zeros, not an undefined .grad.
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
  // optimizer step. All ranks call it.
  absl::StatusOr<bool> Flush();

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
  // A trainable parameter.
  struct Parameter {
    ::torch::Tensor tensor;
    ::torch::Tensor view;  // of its gradient, in the bucket
    // Kept alive, since libtorch only holds it weakly between passes.
    std::shared_ptr<::torch::autograd::Node> accumulate_grad;
    uintptr_t hook_key = 0;
  };
  // Where the exchange of the current step stands.
  enum class Phase { kNone, kRunning, kAveraged };

  DistributedDataParallel(std::shared_ptr<::torch::nn::Module> module,
                          std::unique_ptr<Hook> hook,
                          std::unique_ptr<Averager> averager,
                          Accumulator accumulator,
                          const DistributedDataParallelOptions& options);
  absl::Status Connect(Communicator* communicator);
  absl::Status BroadcastModule();
  // Runs `action` on the parameters' values, and keeps its error.
  absl::Status WithValues(
      const std::function<absl::Status(const std::vector<Span>&)>& action);
  void RegisterHooks();

  bool exchanges() const { return no_sync_depth_ == 0 && sync_; }
  // In the backward pass, after parameter's .grad has been added to.
  void OnGradient(int parameter);
  // The gradients of the whole pass are there.
  void FinishExchange();
  absl::Status Mark(int parameter);
  void TakeAverages();
  // FAILED_PRECONDITION if the hook and the averager that it needs are not in
  // the same step.
  absl::Status CheckAverager() const;
  // Keeps the first error, and lets the peers know.
  void Keep(const absl::Status& status);

  const std::shared_ptr<::torch::nn::Module> module_;
  const DistributedDataParallelOptions options_;
  const std::unique_ptr<Hook> hook_;
  const std::unique_ptr<Averager> averager_;
  Accumulator accumulator_;
  std::unique_ptr<Reducer> reducer_;
  std::vector<Parameter> parameters_;
  absl::Status status_;  // the first error
  Phase phase_ = Phase::kNone;
  bool sync_ = true;  // what the declared micro-batch says
  // A micro-batch was declared that exchanges, and has not yet.
  bool exchange_due_ = false;
  // A step was applied, and the averager has not heard of it.
  bool averager_due_ = false;
  int no_sync_depth_ = 0;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_H_
