#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_WINDOW_ZERO_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_WINDOW_ZERO_H_

#include "absl/status/status.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "client/torch/pipeline/pipeline_options.h"
#include "schedule/pipeline/schedule.h"
#include "schedule/pipeline/stage_cut.h"

namespace coxswain::torch {

// INVALID_ARGUMENT: ddp.zero is 2, without force_zero; with what it would cost
// the rank along pp that has the most (memory::RefuseZeroOfWindow).
absl::Status CheckWindowZero(const PipelineOptions& options,
                             const PipelineModel& model,
                             const PipelineDescription& described,
                             const pipeline::StageCut& cut,
                             const pipeline::Schedule& schedule);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_WINDOW_ZERO_H_
