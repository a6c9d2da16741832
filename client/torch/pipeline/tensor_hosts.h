#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_TENSOR_HOSTS_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_TENSOR_HOSTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mesh.h"
#include "client/session/session.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "client/torch/pipeline/pipeline_options.h"
#include "schedule/pipeline/schedule.h"
#include "schedule/pipeline/stage_cut.h"

namespace coxswain::torch {

// Divided layers exchange activations several times in each, in both passes of
// each micro-batch: where their ranks are on several hosts, that goes over the
// network.

// What a stage's divided layers exchange.
struct TensorTraffic {
  int64_t layers = 0;
  // Of each token: SummedBytes, and RepeatedBytes where the schedule has
  // backward passes in halves.
  int64_t summed_bytes = 0;
  int64_t repeated_bytes = 0;  // how many of them are the latter
};

// Returns what the layers of a rank's stages exchange among `tp` ranks. Makes
// them one after the other, and keeps none. Fails as Describe.
absl::StatusOr<TensorTraffic> TrafficOf(const PipelineModel& model,
                                        const pipeline::StageCut& cut,
                                        const pipeline::Schedule& schedule,
                                        int pp, int tp, bool sequence);

// FAILED_PRECONDITION: the ranks of a group along tp are on several hosts. The
// message names them, has what each of them would send for each token, by
// `traffic`, and how to start the workers otherwise. `hosts` has each
// rank's; `traffic` is asked for what the ranks of a coordinate along pp have,
// and only then.
absl::Status CheckTensorHosts(
    const Mesh& mesh, const std::vector<std::string>& hosts,
    const std::function<absl::StatusOr<TensorTraffic>(int pp)>& traffic);
// Of the ranks of a session, for a pipeline that has not asked for it
// (tp_across_hosts): the same on all of them, and none waits for another.
absl::Status CheckTensorHosts(Session& session, const PipelineModel& model,
                              const PipelineOptions& options);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_TENSOR_HOSTS_H_
