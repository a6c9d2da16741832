#include "client/torch/pipeline/pipeline.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/pipeline/tensor_hosts.h"

namespace coxswain::torch {
namespace {

// How long the coordinator's reason may come after an error that a peer's end
// may have caused.
constexpr absl::Duration kReasonTimeout = absl::Seconds(3);

// Axes of a mesh.
constexpr char kStageAxis[] = "pp";
constexpr char kTensorAxis[] = "tp";

absl::StatusOr<MeshGroups> GroupsOf(Session& session) {
  if (!session.mesh().empty()) return session.GroupsOf(session.mesh());
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh replicas, Mesh::Parse("dp=*"));
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh,
                            replicas.Fit(session.world_size()));
  return session.GroupsOf(mesh);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Create(
    Session& session, const PipelineModel& model, PipelineLoss loss,
    const PipelineOptions& options) {
  return Create(
      session, model,
      MeshLoss([loss = std::move(loss)](
                   const LayerContext&, const Tensors& outputs,
                   const Tensors& targets) { return loss(outputs, targets); }),
      options);
}

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Create(
    Session& session, const PipelineModel& model, MeshLoss loss,
    const PipelineOptions& options) {
  // Of all ranks alike, and before any waits for another.
  COXSWAIN_RETURN_IF_ERROR(CheckTensorHosts(session, model, options));
  COXSWAIN_ASSIGN_OR_RETURN(MeshGroups groups, GroupsOf(session));
  std::unique_ptr<Pipeline> pipeline(new Pipeline(
      session, std::move(groups), model, std::move(loss), options));
  COXSWAIN_RETURN_IF_ERROR(pipeline->Fail(pipeline->Connect()));
  return pipeline;
}

// The session may ask another pipeline by now.
Pipeline::~Pipeline() { *has_ended_ = true; }

bool Pipeline::has_inputs() const {
  return schedule().rank_of_stage(0) == groups_.pp->rank();
}

bool Pipeline::has_targets() const {
  return schedule().rank_of_stage(schedule().stages() - 1) ==
         groups_.pp->rank();
}

std::vector<int> Pipeline::RanksWithTargets() const {
  const int last = schedule().rank_of_stage(schedule().stages() - 1);
  std::vector<int> ranks;
  // pp is the first axis of the group, and tp the last.
  for (int i = 0; i < tensor_ranks(); ++i) {
    ranks.push_back(last * tensor_ranks() + i);
  }
  return ranks;
}

std::vector<std::string> Pipeline::LayersByRank() const {
  const Mesh& mesh = groups_.mesh;
  const int ranks = groups_.pp->size();
  const int tp = mesh.extent(kTensorAxis);
  if (ranks * tp == 1) return {};
  std::vector<std::string> names(static_cast<size_t>(ranks));
  for (int stage = 0; stage < cut_->stages(); ++stage) {
    std::string& name =
        names[static_cast<size_t>(schedule().rank_of_stage(stage))];
    for (int i = cut_->begin(stage); i < cut_->end(stage); ++i) {
      name += model_.layers[static_cast<size_t>(i)].name + ".";
    }
  }
  for (std::string& name : names) {
    name = absl::StrCat(absl::Hex(StableHash(name) >> 32, absl::kZeroPad8));
  }
  std::vector<std::string> result;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    // Those without tp are the names of earlier versions.
    const std::string& layers =
        names[static_cast<size_t>(mesh.CoordinateOf(rank, kStageAxis))];
    result.push_back(
        tp == 1 ? layers
                : absl::StrCat(layers, ":",
                               mesh.CoordinateOf(rank, kTensorAxis), "/", tp));
  }
  return result;
}

std::vector<std::string> Pipeline::replicated() const {
  std::vector<std::string> names;
  for (const RankLayers::Replicated& one : layers_->replicated()) {
    names.push_back(one.name);
  }
  return names;
}

int Pipeline::window() const { return ddp_->accumulator().micro_batches_due(); }

AxisBytes Pipeline::payload_bytes() const {
  const auto of = [](const ProcessGroup& group) {
    return group.size() == 1 ? 0 : group.communicator().payload_bytes();
  };
  AxisBytes bytes;
  bytes.pp = of(*groups_.pp) + tied_->payload_bytes();
  // With hybrid sharding averages go over the latter two.
  for (const auto& group : std::set{groups_.data, groups_.dp, groups_.shard}) {
    bytes.data += of(*group);
  }
  bytes.tp = of(*groups_.tp);
  // Of both axes a group of its own.
  if (model_group_ != groups_.pp && model_group_ != groups_.tp) {
    bytes.pp += of(*model_group_);
  }
  return bytes;
}

absl::Status Pipeline::UseOptimizer(::torch::optim::Optimizer& optimizer) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  optimizer_ = nullptr;
  sharded_.reset();
  COXSWAIN_RETURN_IF_ERROR(Fail(Shard(optimizer)));
  optimizer_ = &optimizer;
  return absl::OkStatus();
}

absl::Status Pipeline::Shard(::torch::optim::Optimizer& optimizer) {
  if (ddp_->zero() == 0) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(sharded_,
                            ShardedOptimizer::Create(*ddp_, optimizer));
  return layers_->FollowMoves();
}

absl::Status Pipeline::Fail(const absl::Status& status) {
  if (status.ok()) return status;
  for (const auto* group :
       {&groups_.pp, &groups_.data, &groups_.dp, &groups_.shard, &groups_.tp}) {
    (*group)->communicator().Abort(status.message());
  }
  if (model_group_ != nullptr) {
    model_group_->communicator().Abort(status.message());
  }
  if (tied_ != nullptr) tied_->Abort(status.message());
  status_ =
      Explain(session_, status,
              MayComeFromPeers(status) ? kReasonTimeout : absl::ZeroDuration());
  return status_;
}

}  // namespace coxswain::torch
