#ifndef COXSWAIN_CLIENT_TORCH_ELASTIC_TRAINING_H_
#define COXSWAIN_CLIENT_TORCH_ELASTIC_TRAINING_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/elastic/elastic_run.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/elastic_module_state.h"
#include "client/torch/module_checkpoint.h"

namespace coxswain::torch {

struct ElasticTrainingOptions {
  // Of its manifest, the world sizes count; the rest is described from the
  // module, `hook` and `ddp`.
  ElasticRun::Options run;
  std::string hook = "allreduce";
  // With make_hook (MakePlannedHook), and without plan and gate, which are the
  // generation's. UNIMPLEMENTED: an averager (the ranks' parameters would be
  // apart when one is lost) and overlapped_optimizer.
  DistributedDataParallelOptions ddp;

  // How checkpoints are saved: the plan (checkpoint_every), an operator,
  // or a worker that is to drain decides when.
  bool own_errors = false;
  CheckpointRetention retention;
  std::function<void(const SaveReport&)> on_checkpoint;
  // How long a leaving worker waits for what is being saved.
  absl::Duration save_timeout = absl::Seconds(60);
  // Where a job that has made no step goes on from: a checkpoint's id, or
  // "newest", which is none where the job has none yet. Empty: from the
  // beginning.
  std::string resume;
};

// Trains a libtorch module through changes of the job's members, in one
// process: each generation has a DistributedDataParallel of its own, over the
// same module and optimizer, and the body runs once in each:
//
//   ElasticTraining::Run(options, model, optimizer, [&](ElasticTraining& t) {
//     while (t.step() < total && t.going()) {
//       auto batch = Batch(t.counter("samples"), t.rank(), t.world_size());
//       const MicroBatch micro = t.Accumulate();
//       auto loss = criterion(model->forward(batch.x), batch.y);
//       COXSWAIN_RETURN_IF_ERROR(t.Backward(loss, micro));
//       if (micro.sync) COXSWAIN_RETURN_IF_ERROR(t.StepOptimizer().status());
//       t.counter("samples") += 32 * t.world_size();
//     }
//     return absl::OkStatus();
//   });
//
// The body goes on from step() and the counters that it finds: after a change,
// these are those of the last step that was committed, on all ranks. Whatever
// else decides what it does next belongs into counter() or blob(); these are
// the job's, not the rank's: all ranks change them alike, and those that are
// behind, or new, take them over, with parameters, buffers, the optimizer's
// state and learning rates, and the hook's state. What a step changed before
// StepOptimizer has taken it is undone: counters, buffers, gradients, and what
// the hook has staged. Windows of other streams than "train" do not
// matter to that: those that had ended by then count.
//
// Checkpoints hold all of this. One that a step's decision asks for is copied
// in the next Accumulate, or when the body returns, with what the program has
// changed by then. Where micro-batches are not declared (no Accumulate), it is
// copied in the next Backward only: with the buffers as the forward pass before
// it has left them, and the counters and blobs as they are then. A worker that
// drains asks for one of its last step.
//
// The body returns OK when it is finished or going() is false, and otherwise
// the error that it met. It is called again where that came from a peer's end.
//
// Threading: one thread.
class ElasticTraining {
 public:
  using Body = std::function<absl::Status(ElasticTraining&)>;

  // As ElasticRun::Run. INVALID_ARGUMENT: options that do not go together.
  static absl::Status Run(const ElasticTrainingOptions& options,
                          std::shared_ptr<::torch::nn::Module> module,
                          ::torch::optim::Optimizer& optimizer,
                          const Body& body);

  // Windows that ended in a decision, those that were skipped included.
  int64_t step() const { return state_.step(); }
  // False: the body is to return. The members change, the job stops, or the
  // plan's max_steps are done.
  bool going() const;

  // As those of DistributedDataParallel, and to be used in their place.
  MicroBatch Accumulate(const Accumulator::Begin& begin = {});
  absl::Status Backward(const ::torch::Tensor& loss);
  absl::Status Backward(const ::torch::Tensor& loss, const MicroBatch& micro);
  absl::StatusOr<bool> StepOptimizer();
  absl::StatusOr<bool> StepWithoutData();
  absl::StatusOr<bool> Flush();

  // Zero, or empty, until the program sets it.
  int64_t& counter(const std::string& name) {
    return state_.record().counters[name];
  }
  std::string& blob(const std::string& name) {
    return state_.record().blobs[name];
  }

  // Of this generation.
  int rank() const { return generation_.communicator->rank(); }
  int world_size() const { return generation_.communicator->size(); }
  Session& session() { return *generation_.session; }
  const RecoveryReport& recovery() const { return generation_.recovery; }
  DistributedDataParallel& ddp() { return *ddp_; }

 private:
  ElasticTraining(const ElasticTrainingOptions& options,
                  std::shared_ptr<::torch::nn::Module> module,
                  ::torch::optim::Optimizer* optimizer,
                  ElasticModuleState* state, ElasticGeneration* generation);

  absl::Status Run(const Body& body, ElasticRun::Trained* trained);
  absl::Status MakeWrapper();
  absl::Status Finish(absl::Status status, ElasticRun::Trained* trained);
  // Goes on from options_.resume.
  absl::Status Resume();
  // Copies what the last step's decision wants saved.
  void SaveIfAsked();
  // Returns the error of a body that goes on although going() is false.
  absl::Status CheckGoing();
  // Begins a window, unless it has begun: what Accumulate does where
  // micro-batches are declared.
  void BeginUndeclared();
  // Between steps: takes over how many windows all streams have ended since
  // Keep, which the program's counters may have counted.
  void NotePosition();
  // Between steps: what Rollback will go back to.
  void Keep();
  void NoteErrorNorm();

  const ElasticTrainingOptions& options_;
  const std::shared_ptr<::torch::nn::Module> module_;
  ::torch::optim::Optimizer& optimizer_;
  ElasticModuleState& state_;
  ElasticGeneration& generation_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<ModuleCheckpoint> checkpoint_;
  int64_t decided_before_ = 0;  // progress when the wrapper was made
  absl::Time next_error_norm_;
  bool told_ = false;  // the body, that it is to return
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_ELASTIC_TRAINING_H_
