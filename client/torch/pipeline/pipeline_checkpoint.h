#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_CHECKPOINT_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_CHECKPOINT_H_

#include "client/resume/program_checkpoint.h"
#include "client/torch/pipeline/pipeline.h"

namespace coxswain::torch {

// Returns how a pipeline's model goes into a checkpoint and back, for
// ModuleCheckpoint:
//
//   ModuleCheckpoint checkpoint(*session, ProgramOf(*pipeline), options);
//   COXSWAIN_ASSIGN_OR_RETURN(
//       auto from, checkpoint.ResumeIfAny("newest", pipeline->ddp()));
//   for (each step) {
//     COXSWAIN_ASSIGN_OR_RETURN(auto result, pipeline->Step(batches));
//     COXSWAIN_RETURN_IF_ERROR(
//         checkpoint.SaveIfAsked(pipeline->ddp(), blobs).status());
//   }
//
// All ranks of all stages save their own pieces at once (ProgramInPieces): what
// a rank has of a stage's tensors is divided over its replicas, or is the
// slices that each keeps, with zero; what the ranks along tp have alike the
// first of them saves. Ranks of any mesh, cut and zero load them, with the same
// layers, parameter names and kind of optimizer. The hook's errors follow their
// elements (LoadHook).
//
// UseOptimizer was called before it is used. The pipeline, and its optimizer,
// outlive it.
ProgramCheckpoint::Program ProgramOf(Pipeline& pipeline);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_CHECKPOINT_H_
