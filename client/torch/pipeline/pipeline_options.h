#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_OPTIONS_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_OPTIONS_H_

#include <torch/types.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/pipeline/pipeline_executor.h"
#include "client/session/job.h"
#include "client/torch/distributed_data_parallel_options.h"
#include "client/torch/loss_scale.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "schedule/pipeline/stage_cut.h"

namespace coxswain::torch {

// Returns the mean loss of a micro-batch, a scalar, from what the last layer
// returned and the batch's targets. May throw.
using PipelineLoss = std::function<::torch::Tensor(const Tensors& outputs,
                                                   const Tensors& targets)>;
// One that needs what its rank is along tp, as VocabParallelCrossEntropy does.
using MeshLoss = std::function<::torch::Tensor(const LayerContext& context,
                                               const Tensors& outputs,
                                               const Tensors& targets)>;

// The same on all ranks, but for on_micro_batch and the like.
struct PipelineOptions {
  // The plan that the program asks for, and what DistributedDataParallel does
  // with each stage's gradients. accumulation_steps are the micro-batches of a
  // step; terms.pipeline is the schedule, 1f1b if it is empty. make_hook is
  // set, as to MakePlannedHook. zero is 0 or 1: see force_zero. max_norm and
  // skip_non_finite are of all ranks' gradients, and need terms.commit_vote
  // where pp or tp is above 1. find_unused_parameters is refused.
  DistributedDataParallelOptions ddp;
  std::string hook = "allreduce";
  // The job's mesh, "pp=2,dp=*,tp=2": that of SessionOptions. `pp` and `tp`
  // have sizes; empty is one rank with all stages.
  std::string mesh;
  // Whether what lies between the layers that tp divides is divided along the
  // sequence (TensorParallelOptions::sequence). Parameters that each rank along
  // tp has whole are then used on its own part of the sequence, and nowhere
  // else: their gradients are summed up.
  bool sequence = false;
  // Lets the ranks of a group along tp be on several hosts; otherwise that is
  // FAILED_PRECONDITION, with the bytes that would travel between them. With
  // more than two data indices replicated parameters may then come to differ in
  // their last bits, which checksum_every takes for damage.
  bool tp_across_hosts = false;
  // Lets ddp.zero be 2; otherwise that is INVALID_ARGUMENT, with the bytes that
  // it would cost and does not save. Its numbers are those of zero=1.
  bool force_zero = false;
  // Which layers each stage has: "0-3,4-7"; "parameters", so that the largest
  // stage has as few as can be; or empty, as many layers in each.
  std::string stages;
  // With ddp.trace_file on_step is called, too.
  PipelineExecutorOptions executor;
  // Multiplies the losses, and divides the gradients, by a scale that follows
  // from the decisions, so that all ranks have the same one: LossScale. Needs
  // ddp.skip_non_finite.
  std::optional<LossScaling> loss_scaling;
};

// Returns what the ranks of a pipeline's job are to have in common: the whole
// model's parameters, the mesh, the schedule, the stages' layers and the ties,
// the same on all ranks. Makes the layers one after the other. Fails with
// INVALID_ARGUMENT, naming what does not fit, and as Describe.
absl::StatusOr<JobManifest> DescribeJob(const PipelineModel& model,
                                        const PipelineOptions& options);

// Returns the model's ties in words, "embedding.weight=head.weight"; empty: it
// has none. Of many it has the first ones and a hash of all.
std::string TiesOf(const PipelineModel& model);

// Return how many ranks the options' mesh has along pp, and along tp. Fail with
// INVALID_ARGUMENT.
absl::StatusOr<int> StageRanksOf(const PipelineOptions& options);
absl::StatusOr<int> TensorRanksOf(const PipelineOptions& options);

// Returns the stages' layers. Fails with INVALID_ARGUMENT.
absl::StatusOr<pipeline::StageCut> CutOf(const PipelineModel& model,
                                         const PipelineOptions& options,
                                         int stages);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_OPTIONS_H_
