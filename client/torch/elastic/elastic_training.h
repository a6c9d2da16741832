#ifndef COXSWAIN_CLIENT_TORCH_ELASTIC_ELASTIC_TRAINING_H_
#define COXSWAIN_CLIENT_TORCH_ELASTIC_ELASTIC_TRAINING_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/elastic/elastic_run.h"
#include "client/elastic/error_norm_reports.h"
#include "client/resume/record_checkpoint.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/elastic/elastic_shards.h"
#include "client/torch/elastic_module_state.h"
#include "client/torch/shard/sharded_optimizer.h"

namespace coxswain::torch {

class MemberCatchUp;  // client/torch/elastic/member_catch_up.h

struct ElasticTrainingOptions {
  // Of its manifest, only the world sizes are used; the rest is described from
  // the module, `hook` and `ddp`.
  ElasticRun::Options run;
  std::string hook = "allreduce";
  // With make_hook (MakePlannedHook), and without plan and gate, which are the
  // generation's. Fails with UNIMPLEMENTED for an averager (the ranks'
  // parameters would differ when one is lost) and for overlapped_optimizer, and
  // with INVALID_ARGUMENT for reducer.hybrid: each generation makes its own.
  DistributedDataParallelOptions ddp;

  // How checkpoints are saved: the plan (checkpoint_every), an operator,
  // or a worker that is to drain decides when.
  bool own_errors = false;
  CheckpointRetention retention;
  std::function<void(const SaveReport&)> on_checkpoint;
  // How long a leaving worker waits for a save in progress.
  absl::Duration save_timeout = absl::Seconds(60);
  // The checkpoint that a job without a step resumes from: an id, or "newest",
  // which is none if the job has none yet. Empty: from the beginning. With
  // ddp.zero, "newest" is also what a job goes back to that has lost a slice,
  // and an id before the first step after it.
  std::string resume;

  // Newcomers take parameters and optimizer from the members while these train,
  // where that is possible (docs/elastic.md); otherwise once the generation has
  // ended, while the members wait.
  bool catch_up = true;
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
// The body continues from step() and the counters that it finds: after a
// change, these are those of the last step that was committed, on all ranks.
// Whatever else decides what it does next belongs into counter() or blob();
// these are the job's, not the rank's: all ranks change them alike, and ranks
// that are behind, or new, copy them, with parameters, buffers, the optimizer's
// state and learning rates, and the hook's state. Changes of a step before
// StepOptimizer has taken it are undone: counters, buffers, gradients, and what
// the hook has staged. Windows of other streams than "train" do not affect
// that: those that had ended by then count.
//
// Checkpoints hold all of this. One that a step's decision asks for is copied
// in the next Accumulate, or when the body returns, with the program's changes
// until then. If micro-batches are not declared (no Accumulate), it is copied
// in the next Backward only: with the buffers as the forward pass before it has
// left them, and the counters and blobs as they are then. A worker that drains
// requests one of its last step.
//
// The body returns OK when it is finished or going() is false, and otherwise
// its error. It is called again if a peer's end caused the error.
//
// With ddp.zero each rank keeps slices of the optimizer's state, as
// ShardedOptimizer does, which shards the optimizer of each generation anew:
// it takes no step itself. Members that come and go change who keeps what. A
// slice that is lost with a rank, and that no other one has, is that of the
// newest checkpoint: all ranks go back to its step, counters and buffers
// included, which is logged (went_back_to_checkpoint) and one of
// recovery().warnings. DATA_LOSS if there is none, or if `resume` is not
// "newest", unless no step was taken since the checkpoint that it names.
//
// Steps are replayed (RecoveryOptions::replay) without ddp.zero; kAlways with
// it is UNIMPLEMENTED. Where micro-batches are not declared, the ranks go back
// to the counters and blobs as they are at the first Backward of a window.
//
// Threading: one thread.
class ElasticTraining {
 public:
  using Body = std::function<absl::Status(ElasticTraining&)>;

  // Runs as ElasticRun::Run. Fails with INVALID_ARGUMENT if options contradict
  // each other.
  static absl::Status Run(const ElasticTrainingOptions& options,
                          std::shared_ptr<::torch::nn::Module> module,
                          ::torch::optim::Optimizer& optimizer,
                          const Body& body);

  // Returns the number of windows that ended in a decision, including those
  // that were skipped.
  int64_t step() const { return state_.step(); }
  // Returns false if the body is to return: the members change, the job stops,
  // or the plan's max_steps are done.
  bool going() const;

  // As those of DistributedDataParallel, and used in their place.
  MicroBatch Accumulate(const Accumulator::Begin& begin = {});
  absl::Status Backward(const ::torch::Tensor& loss);
  absl::Status Backward(const ::torch::Tensor& loss, const MicroBatch& micro);
  absl::StatusOr<bool> StepOptimizer();
  absl::StatusOr<bool> StepWithoutData();
  absl::StatusOr<bool> Flush();

  // Return a counter and a blob, zero and empty until the program sets them.
  int64_t& counter(const std::string& name) {
    return state_.record().counters[name];
  }
  std::string& blob(const std::string& name) {
    return state_.record().blobs[name];
  }

  // Returns this worker's rank in the generation.
  int rank() const { return generation_.communicator->rank(); }
  int world_size() const { return generation_.communicator->size(); }
  Session& session() { return *generation_.session; }
  const RecoveryReport& recovery() const { return generation_.recovery; }
  DistributedDataParallel& ddp() { return *ddp_; }

 private:
  ElasticTraining(const ElasticTrainingOptions& options,
                  std::shared_ptr<::torch::nn::Module> module,
                  ::torch::optim::Optimizer* optimizer,
                  ElasticModuleState* state, ElasticShards* shards,
                  MemberCatchUp* catch_up, ElasticGeneration* generation);

  absl::Status Run(const Body& body, ElasticRun::Trained* trained);
  absl::Status MakeWrapper();
  // Brings the slices, or all, to where the job goes on.
  absl::Status Restore(ElasticRun::Trained* trained);
  absl::Status RestoreParts(ElasticRun::Trained* trained);
  absl::Status GoBack(const absl::Status& lost, ElasticRun::Trained* trained);
  // Returns which checkpoint to go back to; empty: none. The same on all ranks.
  absl::StatusOr<std::string> WhereToGoBack();
  // As RecordCheckpoint::Resume, which after an error leaves the module's
  // buffers and frozen parameters, and the learning rates, as they were.
  absl::StatusOr<bool> ResumeOrUndo(const std::string& id);
  // Keeps the slices, for the next generation.
  void KeepSlices();
  absl::StatusOr<bool> TakeStep();
  absl::Status Finish(absl::Status status, ElasticRun::Trained* trained);
  // Copies the state if the last step's decision asks for it.
  void SaveIfAsked();
  // Returns the error of a body that continues although going() is false.
  absl::Status CheckGoing();
  // Begins a window, unless it has begun: what Accumulate does where
  // micro-batches are declared.
  void BeginUndeclared();
  // Before such a window, for replays: copies the state if it is one to go back
  // to, with the buffers as they were before the window's forward pass.
  void CopyUndeclared();
  // Between steps: notes how many windows all streams have ended since Keep,
  // which the program's counters may have counted.
  void NotePosition();
  // Between steps: keeps the state that Rollback restores.
  void Keep();

  const ElasticTrainingOptions& options_;
  const std::shared_ptr<::torch::nn::Module> module_;
  ::torch::optim::Optimizer& optimizer_;
  ElasticModuleState& state_;
  ElasticShards& shards_;
  MemberCatchUp& catch_up_;
  ElasticGeneration& generation_;
  const int64_t began_at_;  // progress
  std::unique_ptr<DistributedDataParallel> ddp_;
  // Null without zero.
  std::unique_ptr<ShardedOptimizer> sharded_;
  // Which state the slices had when the body began.
  ShardVersion restored_;
  // Progress of the slices after a step that was cut short behind them.
  std::optional<int64_t> sliced_;
  std::unique_ptr<RecordCheckpoint> checkpoint_;
  ErrorNormReports error_norms_;
  bool notified_ = false;  // the body, that it is to return
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_ELASTIC_ELASTIC_TRAINING_H_
