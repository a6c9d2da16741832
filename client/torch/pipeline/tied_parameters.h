#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_TIED_PARAMETERS_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_TIED_PARAMETERS_H_

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/group/mesh_groups.h"
#include "client/group/process_group.h"
#include "client/session/session.h"
#include "client/torch/pipeline/rank_layers.h"

namespace coxswain::torch {

// A rank's parameters that are tied to those of other ranks of its pipeline. A
// pair of ranks has a group of its own. Made and called by all ranks of a
// pipeline alike; one thread. An error ends what goes on in the groups.
class TiedParameters {
 public:
  // Connects the groups: `rank_of` has the rank along pp that holds a layer.
  // Fails as Session::CreateGroup. The session outlives the result.
  static absl::StatusOr<std::unique_ptr<TiedParameters>> Connect(
      Session& session, const MeshGroups& groups, const RankLayers& layers,
      const std::function<int(int layer)>& rank_of, absl::Duration timeout);

  // Gives both of each pair the sum of their gradients: after their last
  // backward passes, and before they are averaged.
  absl::Status SumGradients();
  // Gives the second of each pair the first one's values.
  absl::Status CopyValues();

  // Returns what this rank has handed to the groups.
  int64_t payload_bytes() const;

  void Abort(absl::string_view reason);

 private:
  struct Pair {
    ::torch::Tensor parameter;
    std::shared_ptr<ProcessGroup> group;
    int root = 0;  // of the first one, in the group
  };

  explicit TiedParameters(absl::Duration timeout) : timeout_(timeout) {}

  const absl::Duration timeout_;  // of each exchange
  std::vector<Pair> pairs_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_TIED_PARAMETERS_H_
