// What a schedule knows of the job's pipelines: for the search for stalls, and
// for display.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "schedule/pipeline/explain.h"
#include "schedule/pipeline/proof.h"
#include "schedule/pipeline/timing.h"
#include "server/membership/pipeline_places.h"
#include "server/schedule/job_schedule.h"

namespace coxswain::server {
namespace {

constexpr size_t kMaxPipelineFindings = 8;
// Of all ranks, in a picture of a step.
constexpr int64_t kMaxPictureActions = 4096;

// Returns what the passes of each stage take: the medians that the ranks with
// the stage have measured, of several the longest. Empty: a stage has none yet.
std::vector<pipeline::StageCosts> CostsOf(
    const std::vector<MemberDescription>& members, int stages) {
  std::vector<pipeline::StageCosts> costs(static_cast<size_t>(stages),
                                          pipeline::StageCosts{0, 0, 0});
  for (const MemberDescription& member : members) {
    if (!member.progress.pipeline.has_value()) continue;
    for (const StagePasses& passes : member.progress.pipeline->passes) {
      if (passes.stage >= stages) continue;
      pipeline::StageCosts& one = costs[static_cast<size_t>(passes.stage)];
      one.forward = std::max(one.forward, passes.forward);
      // A whole one is cut anywhere: no schedule has both.
      one.backward_input = std::max(
          {one.backward_input, passes.backward_input, passes.backward});
      one.backward_weight =
          std::max(one.backward_weight, passes.backward_weight);
    }
  }
  for (const pipeline::StageCosts& one : costs) {
    if (one.forward == 0 || one.backward_input == 0) return {};
  }
  return costs;
}

// Of one step of a schedule: when each action runs. Empty: it has too many.
pipeline::Timing TimesOf(const pipeline::Schedule& schedule,
                         std::vector<pipeline::StageCosts> costs) {
  int64_t actions = 0;
  for (const auto& list : schedule.of_rank()) {
    actions += static_cast<int64_t>(list.size());
  }
  if (actions > kMaxPictureActions) return {};
  pipeline::TimingOptions options;
  options.stages = std::move(costs);
  options.capacity = pipeline::LeastCapacity(schedule).value_or(1);
  return pipeline::Time(schedule, options).value_or(pipeline::Timing());
}

// Returns the passes of a list with their times.
std::vector<PipelineReport::Pass> LaneOf(
    const pipeline::Schedule::Actions& list,
    const std::vector<pipeline::Interval>& times) {
  std::vector<PipelineReport::Pass> lane;
  for (size_t at = 0; at < list.size(); ++at) {
    if (!pipeline::IsCompute(list[at].kind)) continue;
    lane.push_back(
        {pipeline::ToString(list[at]), times[at].begin, times[at].end});
  }
  return lane;
}

// Returns when the action of a place begins in the picture, if there is one.
std::optional<double> InPicture(const PipelinePlace& place, size_t lane,
                                const pipeline::Timing& timing) {
  if (lane >= timing.of_rank.size()) return std::nullopt;
  const std::vector<pipeline::Interval>& times = timing.of_rank[lane];
  const auto action = static_cast<size_t>(place.action);
  return action < times.size() ? times[action].begin : timing.makespan;
}

}  // namespace

pipeline::SchedulesOfJob* JobSchedule::Schedules() const {
  const schedule::Plan& in_force = plan();
  if (in_force.terms.pipeline.empty()) return nullptr;
  if (!schedules_.has_value()) {
    schedules_.emplace(
        first_plan_.terms.pipeline, begin_.mesh.extent("pp"),
        LargestWindow(first_plan_, begin_.mesh, begin_.world_size));
  }
  schedules_->Use(in_force.terms.pipeline,
                  LargestWindow(in_force, begin_.mesh, begin_.world_size));
  return &*schedules_;
}

std::optional<pipeline::Explanation> JobSchedule::Explain(
    const std::vector<MemberDescription>& members) const {
  pipeline::SchedulesOfJob* const schedules = Schedules();
  if (schedules == nullptr || members.size() != ranks_.size()) {
    return std::nullopt;
  }
  return pipeline::ExplainPipeline(
      PlacesOf(members, begin_.mesh, asks_.heartbeat_interval), schedules);
}

std::optional<PipelineReport> JobSchedule::PipelineOf(
    const std::vector<MemberDescription>& members) const {
  if (over()) return std::nullopt;
  std::optional<pipeline::Explanation> found = Explain(members);
  if (!found.has_value()) return std::nullopt;
  PipelineReport report;
  report.schedule = plan().terms.pipeline;
  report.micro_batches = Schedules()->window();
  for (const pipeline::Holder& holder : found->holders) {
    if (report.findings.size() == kMaxPipelineFindings) break;
    report.findings.push_back(holder.sentence);
  }
  const pipeline::IndexedSchedule* const window = Schedules()->OfWindow();
  pipeline::Timing timing;
  if (window != nullptr) {
    const pipeline::Schedule& schedule = window->schedule();
    std::vector<pipeline::StageCosts> costs =
        CostsOf(members, schedule.stages());
    report.measured = !costs.empty();
    timing = TimesOf(schedule, std::move(costs));
    for (size_t lane = 0; lane < timing.of_rank.size(); ++lane) {
      report.lanes.push_back(
          LaneOf(schedule.of_rank()[lane], timing.of_rank[lane]));
    }
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const auto number = static_cast<int>(i);
    PipelineReport::Rank rank;
    rank.in = std::move(found->in[i]);
    rank.waits_for = std::move(found->waits_for[i]);
    if (const auto* const holder = found->HolderOf(number)) {
      rank.waiters = holder->waiters;
    }
    rank.lane = begin_.mesh.CoordinateOf(number, "pp");
    if (const auto& place = members[i].progress.pipeline) {
      rank.step = place->step;
      rank.in_it = place->in_it;
      const bool in_window =
          window != nullptr && place->micro_batches == report.micro_batches &&
          (place->schedule == 0 || place->schedule == window->hash());
      if (in_window) {
        rank.at = InPicture(*place, static_cast<size_t>(rank.lane), timing);
      }
    }
    report.ranks.push_back(std::move(rank));
  }
  return report;
}

}  // namespace coxswain::server
