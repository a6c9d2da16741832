#ifndef COXSWAIN_CLI_WHY_H_
#define COXSWAIN_CLI_WHY_H_

#include <string>

#include "absl/status/statusor.h"
#include "cli/options.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/schedule.pb.h"

namespace coxswain {

// `coxswain why`: where each rank of a job is in its schedule, as text for
// stdout. Errors as FindJob.
absl::StatusOr<std::string> ShowWhy(const JobOptions& options,
                                    CoordinatorStub& stub);

// The answer for people: the findings, a table of the ranks, of which the odd
// ones are marked, and one of the last rounds.
std::string FormatWhy(const std::string& job, const v1::WhyResponse& why);

// The same as JSON:
//   {"job", "state", "generation", "last_event", "findings": [TEXT],
//    "ranks": [{"rank", "member", "state", "odd", "stream", "round", "step",
//               "micro_batches_in_window", "window", "decided",
//               "ticket_age_ms", "collective_sequence", "bucket",
//               "micro_batches", "idle_ms", "silent_ms", "activity"}],
//    "history": [{"stream", "round", "step", "commit", "reason", "age_ms",
//                 "tickets_ms", "last_rank", "plan_version"}]}
std::string FormatWhyJson(const std::string& job, const v1::WhyResponse& why);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_WHY_H_
