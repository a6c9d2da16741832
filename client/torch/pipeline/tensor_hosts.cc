#include "client/torch/pipeline/tensor_hosts.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/schedule/schedule_client.h"
#include "client/session/job.h"
#include "client/torch/tensor/parallel_layer.h"
#include "schedule/pipeline/action.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/schedule.h"
#include "schedule/plan.h"

namespace coxswain::torch {
namespace {

// Returns how to start the workers, or the mesh, otherwise.
std::string WayOut(const Mesh& mesh, const MeshAxes& tp,
                   const std::vector<std::string>& hosts) {
  std::string hint = PlacementHint(mesh, tp, hosts);
  if (!hint.empty()) return hint;
  std::map<std::string, int> workers;
  int most = 0;
  for (const std::string& host : hosts) {
    most = std::max(most, ++workers[host]);
  }
  return absl::StrCat(
      DescribeApart(mesh, tp, hosts), "; no host has more than ", most,
      most == 1 ? " worker" : " workers", ": start ", mesh.GroupSize(tp),
      " on each, or make tp at most ", most);
}

bool HasHalves(const pipeline::Schedule::Actions& actions, int stage) {
  return std::any_of(
      actions.begin(), actions.end(), [stage](const pipeline::Action& action) {
        return action.stage == stage &&
               action.kind == pipeline::ActionKind::kBackwardInput;
      });
}

}  // namespace

absl::StatusOr<TensorTraffic> TrafficOf(const PipelineModel& model,
                                        const pipeline::StageCut& cut,
                                        const pipeline::Schedule& schedule,
                                        int pp, int tp, bool sequence) {
  const LayerContext context = ContextOfOne(tp, sequence);
  TensorTraffic traffic;
  for (const int stage : schedule.StagesOf(pp)) {
    const bool halves = HasHalves(schedule.of_rank()[pp], stage);
    for (int i = cut.begin(stage); i < cut.end(stage); ++i) {
      COXSWAIN_ASSIGN_OR_RETURN(const auto module,
                                MakeLayer(model, i, context));
      const int64_t bytes = module == nullptr ? 0 : SummedBytes(*module);
      if (bytes == 0) continue;
      ++traffic.layers;
      // The batch has no gradients, so the half of the inputs leaves out the
      // model's first layer.
      const int64_t repeated =
          halves && i > 0 ? RepeatedBytes(*module, sequence) : 0;
      traffic.summed_bytes += bytes + repeated;
      traffic.repeated_bytes += repeated;
    }
  }
  return traffic;
}

absl::Status CheckTensorHosts(
    const Mesh& mesh, const std::vector<std::string>& hosts,
    const std::function<absl::StatusOr<TensorTraffic>(int pp)>& traffic) {
  const MeshAxes tp = mesh.AxesOf({"tp"});
  if (tp.empty() || hosts.size() != static_cast<size_t>(mesh.size())) {
    return absl::OkStatus();
  }
  const std::vector<std::vector<int>> apart = GroupsApart(mesh, tp, hosts);
  if (apart.empty()) return absl::OkStatus();
  const bool has_stages = !mesh.AxesOf({"pp"}).empty();
  const int pp = mesh.CoordinateOf(apart.front().front(), "pp");
  COXSWAIN_ASSIGN_OR_RETURN(const TensorTraffic sent, traffic(pp));
  const int ranks = mesh.GroupSize(tp);
  const int64_t bytes = sent.summed_bytes * 2 * (ranks - 1) / ranks;
  return absl::FailedPreconditionError(absl::StrCat(
      WayOut(mesh, tp, hosts), ". Each rank of such a group sends ", bytes,
      " bytes for each token of a micro-batch, forward and backward: 2 x ",
      ranks - 1, "/", ranks, " of the ", sent.summed_bytes, " bytes that the ",
      sent.layers, " divided layers",
      has_stages ? absl::StrCat(" of pp ", pp) : "", " sum up",
      sent.repeated_bytes > 0
          ? absl::StrCat(", ", sent.repeated_bytes,
                         " of them once more for the parameters, as the "
                         "backward pass comes in halves")
          : "",
      "; to let that go between hosts, set "
      "PipelineOptions::tp_across_hosts"));
}

absl::Status CheckTensorHosts(Session& session, const PipelineModel& model,
                              const PipelineOptions& options) {
  const Mesh& mesh = session.mesh();
  const schedule::Plan plan = session.schedule().plan();
  if (options.tp_across_hosts || mesh.extent("tp") == 1 ||
      plan.terms.pipeline.empty()) {
    return absl::OkStatus();
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<JobMember> members,
                            session.Members());
  std::vector<std::string> hosts;
  for (const JobMember& member : members) hosts.push_back(member.host);
  return CheckTensorHosts(
      mesh, hosts, [&](int pp) -> absl::StatusOr<TensorTraffic> {
        const DataPlace data =
            DataPlaceOf(mesh, session.rank(), session.world_size());
        COXSWAIN_ASSIGN_OR_RETURN(
            const pipeline::Schedule schedule,
            pipeline::MakeSchedule(plan.terms.pipeline, mesh.extent("pp"),
                                   plan.WindowOf(data.index, data.count)));
        COXSWAIN_ASSIGN_OR_RETURN(const pipeline::StageCut cut,
                                  CutOf(model, options, schedule.stages()));
        return TrafficOf(model, cut, schedule, pp, mesh.extent("tp"),
                         options.sequence);
      });
}

}  // namespace coxswain::torch
