#ifndef COXSWAIN_CLIENT_TORCH_MODULE_CHECKPOINT_H_
#define COXSWAIN_CLIENT_TORCH_MODULE_CHECKPOINT_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/checkpoint/async_checkpoint.h"
#include "client/resume/program_checkpoint.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"

namespace coxswain::torch {

// Returns how the module, and what the optimizer has learned, go into a
// checkpoint and back. Both outlive it.
ProgramCheckpoint::Program ProgramOf(
    const std::shared_ptr<::torch::nn::Module>& module,
    ::torch::optim::Optimizer* optimizer);

// Returns the training state between two steps.
ProgramCheckpoint::Training StateOf(DistributedDataParallel& ddp);

// Saves the training state of a libtorch program, and resumes from it:
// parameters and buffers, the optimizer's state, the hook's (and the
// averager's), the positions of the plan's streams, and bytes of the program's
// own.
//
//   ModuleCheckpoint checkpoint(*session, model, &optimizer, options);
//   COXSWAIN_ASSIGN_OR_RETURN(auto from, checkpoint.Resume("newest", *ddp));
//   for (each step) {
//     COXSWAIN_RETURN_IF_ERROR(ddp->StepOptimizer(optimizer).status());
//     checkpoint.SaveIfAsked(*ddp, {{"sampler", ...}});
//     if (ddp->stopping()) break;
//   }
//   checkpoint.Finish(absl::Seconds(60)).IgnoreError();  // it was logged
//
// All ranks agree on the steps that are saved (schedule::Decision::checkpoint):
// by the plan's checkpoint_every, by ScheduleClient::RequestCheckpoint on any
// rank, or by an operator. Saving continues beside training, see
// AsyncCheckpoint.
//
// Life-cycle: one session, which outlives it, and one object of it. Its
// destructor waits as that of AsyncCheckpoint: for ranks that are connecting,
// up to the session's collective_timeout, or 5 minutes where rank 0 is behind;
// the end of the generation ends both. Threading: the thread that trains.
class ModuleCheckpoint {
 public:
  // make_hook is that of DistributedDataParallelOptions, and required.
  using Options = ProgramCheckpoint::Options;
  using Blobs = ProgramCheckpoint::Blobs;
  using Resumed = ProgramCheckpoint::Resumed;

  ModuleCheckpoint(Session& session,
                   std::shared_ptr<::torch::nn::Module> module,
                   ::torch::optim::Optimizer* optimizer,
                   const Options& options);
  // Of a module whose optimizer is sharded: ProgramOf in
  // client/torch/shard/sharded_checkpoint.h.
  ModuleCheckpoint(Session& session, ProgramCheckpoint::Program program,
                   const Options& options);

  // After each step, once its optimizer step is taken, on all ranks alike:
  // copies the state if the decision on that step asks for it; returns whether
  // it did. `blobs` are the same on all ranks; their names begin with no dot.
  // With an averager, the ranks' parameters are averaged first. Errors are
  // reported and logged, and do not end training: only that of
  // AverageParameters is returned. In the middle of a window nothing is copied,
  // which is logged (checkpoint_not_copied).
  absl::StatusOr<bool> SaveIfAsked(DistributedDataParallel& ddp,
                                   const Blobs& blobs = {});
  // Copies the state whatever the decision; does nothing if this step has been
  // saved. Returns whether it copied.
  absl::StatusOr<bool> Save(DistributedDataParallel& ddp,
                            absl::string_view reason, const Blobs& blobs = {});

  // Waits for the save in progress, before the session is left. As
  // AsyncCheckpoint::Finish.
  absl::Status Finish(absl::Duration timeout) {
    return program_.Finish(timeout);
  }

  // Resumes from a checkpoint of this job, of any world size: the one named, or
  // "newest", which is then the same for all ranks. All ranks call it after the
  // wrapper was made, before the first step.
  //   NOT_FOUND            there is none
  //   FAILED_PRECONDITION  it is of another model or hook: lists what differs
  absl::StatusOr<Resumed> Resume(absl::string_view id,
                                 DistributedDataParallel& ddp);

  // As Resume; returns nothing, and logs it, if `id` is "newest" and the job
  // has no checkpoint yet.
  absl::StatusOr<std::optional<Resumed>> ResumeIfAny(
      absl::string_view id, DistributedDataParallel& ddp);

  const AsyncCheckpoint& saver() const { return program_.saver(); }

 private:
  ProgramCheckpoint program_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_MODULE_CHECKPOINT_H_
