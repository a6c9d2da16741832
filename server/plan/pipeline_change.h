#ifndef COXSWAIN_SERVER_PLAN_PIPELINE_CHANGE_H_
#define COXSWAIN_SERVER_PLAN_PIPELINE_CHANGE_H_

#include "absl/status/status.h"
#include "schedule/plan.h"
#include "schedule/terms.h"

namespace coxswain::server {

// Which ranks a plan is for.
struct PlanRanks {
  int data = 0;      // that read data of their own; 0: not known
  int pipeline = 0;  // along pp; 0: not known
};

// Returns whether either has a pipeline: then a change from one to the other
// is to be checked.
bool ConcernsPipeline(const schedule::Terms& from, const schedule::Terms& to);

// Checks that ranks which hold the stages that `from` gives them can follow
// `to`, and proves that its schedules come to their end. INVALID_ARGUMENT with
// the reason: they would hold other stages; or a schedule would be larger than
// one may be, or never end.
//
// Takes time and memory in proportion to the actions of a schedule, at most
// pipeline::kMaxActions; so no lock is to be held that others wait for.
absl::Status CheckPipelineChange(const schedule::Terms& from,
                                 const schedule::Plan& to,
                                 const PlanRanks& ranks);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PLAN_PIPELINE_CHANGE_H_
