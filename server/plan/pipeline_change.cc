#include "server/plan/pipeline_change.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/proof.h"
#include "schedule/pipeline/schedule.h"
#include "schedule/pipeline/schedules_of_job.h"

namespace coxswain::server {
namespace {

std::string Shown(const schedule::Terms& terms) {
  return absl::StrCat("pipeline=", terms.ToMap().at("pipeline"));
}

// Returns how many stages each rank has; 0: there is no pipeline.
int StagesOfARank(const schedule::Terms& terms) {
  if (terms.pipeline.empty()) return 0;
  const auto spec = pipeline::ScheduleSpec::Parse(terms.pipeline);
  return spec.ok() ? spec->chunks : 0;
}

absl::Status Prove(const std::string& spec, int ranks, int micro_batches) {
  COXSWAIN_ASSIGN_OR_RETURN(const pipeline::Schedule schedule,
                            pipeline::MakeSchedule(spec, ranks, micro_batches));
  return pipeline::LeastCapacity(schedule).status();
}

}  // namespace

bool ConcernsPipeline(const schedule::Terms& from, const schedule::Terms& to) {
  return !from.pipeline.empty() || !to.pipeline.empty();
}

int64_t ActionsToProve(const schedule::Plan& to, const PlanRanks& ranks) {
  if (to.terms.pipeline.empty() || ranks.pipeline == 0) return 0;
  // The first of them has as many micro-batches as any.
  return pipeline::CountActions(to.terms.pipeline, ranks.pipeline,
                                to.WindowOf(0, std::max(1, ranks.data)));
}

absl::Status CheckPipelineChange(const schedule::Terms& from,
                                 const schedule::Plan& to,
                                 const PlanRanks& ranks) {
  const int before = StagesOfARank(from);
  const int after = StagesOfARank(to.terms);
  if (before != after) {
    return absl::InvalidArgumentError(absl::StrCat(
        Shown(to.terms), " gives a rank ", after, " stages, and with ",
        Shown(from), " it has ", before,
        ": layers do not move while a job runs; start the job anew with it "
        "(coxswain run --plan)"));
  }
  if (after == 0 || ranks.pipeline == 0) return absl::OkStatus();
  // Ranks of different data may have one micro-batch more or less.
  const int data = std::max(1, ranks.data);
  for (const int micro_batches :
       std::set<int>{to.WindowOf(0, data), to.WindowOf(data - 1, data)}) {
    const absl::Status proved =
        Prove(to.terms.pipeline, ranks.pipeline, micro_batches);
    if (proved.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the ", ranks.pipeline, " ranks of a pipeline cannot run ",
                     Shown(to.terms), " with ", micro_batches,
                     " micro-batches: ", proved.message()));
  }
  return absl::OkStatus();
}

}  // namespace coxswain::server
