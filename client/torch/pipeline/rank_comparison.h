#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_RANK_COMPARISON_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_RANK_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mesh.h"
#include "client/group/process_group.h"

namespace coxswain::torch {

// What a rank of a pipeline is called to do. Ranks that do different things run
// schedules that do not match, and would wait for each other's messages.
struct PipelineCall {
  enum class Kind { kStep, kStepWithoutData, kEvaluation };
  Kind kind = Kind::kStep;
  int micro_batches = 0;
  std::vector<double> weights;
  // A checksum of this rank's inputs and targets, which ranks that differ along
  // tp alone have in common.
  uint32_t data = 0;
  // How many weights all ranks exchange, whatever this one has. An evaluation
  // may have more.
  size_t expected = 0;
};

// Compares what the ranks of one data index are called to do, in one exchange,
// in which all of them take part before anything else. Returns the expected
// weights of the ranks `weighing`, by their numbers in the group. Fails with
// FAILED_PRECONDITION, on all of them and naming who does what, where they
// differ, or these do in their weights, or ranks along tp in their data, and as
// Communicator::AllGather. `mesh` has the job's ranks.
absl::StatusOr<std::vector<double>> CompareCalls(
    ProcessGroup& group, const Mesh& mesh, const PipelineCall& own,
    const std::vector<int>& weighing, absl::Duration timeout);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_RANK_COMPARISON_H_
