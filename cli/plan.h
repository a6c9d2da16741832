#ifndef COXSWAIN_CLI_PLAN_H_
#define COXSWAIN_CLI_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/random.h"
#include "cli/options.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/schedule.pb.h"

namespace coxswain {

// `coxswain plan show`: the plan of a job, and the one that comes next, as text
// for stdout. Errors as FindJob, and NOT_FOUND where no generation of the job
// has begun.
absl::StatusOr<std::string> ShowPlan(const JobOptions& options,
                                     CoordinatorStub& stub);

// `coxswain plan set`: reads the newest plan, changes it and proposes it.
// Returns what was accepted, as a line for stdout.
//   INVALID_ARGUMENT     the changed plan makes no sense
//   FAILED_PRECONDITION  it cannot begin where it was asked to, or another
//                        version is the newest by now
//   and as FindJob
absl::StatusOr<std::string> SetPlan(const PlanSetOptions& options,
                                    CoordinatorStub& stub,
                                    RandomSource* random);

// The answer as a table for people: what differs from the defaults first, and
// a column for the next plan, if there is one, with what it changes.
std::string FormatPlans(const std::string& job,
                        const v1::GetPlanResponse& plans);

// The same as JSON, where "next" is null if there is none:
//   {"job", "current": PLAN, "next": PLAN}
//   PLAN: {"version", "accumulation_steps", "hook", "compression_start_step",
//          "terms": {NAME: VALUE}, "changed": [NAME], "global_micro_batches",
//          "at_step"}
// "terms" has all of them, and "changed" those that are not the defaults.
std::string FormatPlansJson(const std::string& job,
                            const v1::GetPlanResponse& plans);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_PLAN_H_
