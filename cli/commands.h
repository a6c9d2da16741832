#ifndef COXSWAIN_CLI_COMMANDS_H_
#define COXSWAIN_CLI_COMMANDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/options.h"

namespace coxswain {

class CoordinatorStub;
class RandomSource;
namespace v1 {
class GetPlanResponse;
class WhyResponse;
}  // namespace v1

// The commands that need no more than a stub, each in a file NAME.cc. Commands
// whose clock, files or terminal tests replace have their own headers.

// Runs `coxswain serve`: a coordinator, until SIGINT or SIGTERM. Called in the
// main thread, before any other is started.
absl::Status Serve(const ServeOptions& options);

// Runs `coxswain run`: starts the workers of this node, waits until they end,
// and reports each end to the coordinator. Returns the exit status. Called in
// the main thread, before any other is started.
//
// Without a coordinator's address it runs one itself, on the loopback, with
// its state in a temporary folder that is removed at the end.
absl::StatusOr<int> Run(const RunOptions& options);

// Returns what `coxswain plan show` prints: the plan of a job, and the next
// one. Fails as FindJob, and with NOT_FOUND if no generation of the job has
// begun.
absl::StatusOr<std::string> ShowPlan(const JobOptions& options,
                                     CoordinatorStub& stub);

// Runs `coxswain plan set`: reads the newest plan, changes it and proposes it.
// Returns what was accepted, as a line for stdout. Fails as FindJob, and with
//   INVALID_ARGUMENT     the changed plan is invalid
//   FAILED_PRECONDITION  it cannot begin at the given step, or another version
//                        has become the newest
absl::StatusOr<std::string> SetPlan(const PlanSetOptions& options,
                                    CoordinatorStub& stub,
                                    RandomSource* random);

// Returns the answer of GetPlan as a table for display: settings that are not
// the defaults first, and a column for the changes of the next plan, if any.
std::string FormatPlans(const std::string& job,
                        const v1::GetPlanResponse& plans);

// Returns the same as JSON: {"job", "plan": PLAN, "plan_next": PLAN or null},
// where PLAN is server::PlanJson.
std::string FormatPlansJson(const std::string& job,
                            const v1::GetPlanResponse& plans);

// Returns what `coxswain plan schedule` prints: the actions of a pipeline's
// ranks over time, its bubble and what its ranks hold, or its CSV. Fails with
// INVALID_ARGUMENT if it would be too large, and with FAILED_PRECONDITION if it
// cannot run with the given capacity. Calls no coordinator.
absl::StatusOr<std::string> DescribeSchedule(
    const PlanScheduleOptions& options);

// Returns what `coxswain plan check` prints: the same of a file. Fails
// likewise, with INVALID_ARGUMENT also where the file holds no schedule, and
// with NOT_FOUND if it cannot be read.
absl::StatusOr<std::string> CheckSchedule(const PlanCheckOptions& options);

// Returns what `coxswain plan memory` prints: what each rank holds when it
// holds the most, by what it is for, as a table or as JSON. Fails with
// NOT_FOUND if the file cannot be read, with INVALID_ARGUMENT if it describes
// no model, and with the reason where it cannot be trained so. Calls no
// coordinator.
absl::StatusOr<std::string> DescribeMemory(const PlanMemoryOptions& options);

// Returns what `coxswain why` prints: where each rank of a job is in its
// schedule. Fails as FindJob.
absl::StatusOr<std::string> ShowWhy(const JobOptions& options,
                                    CoordinatorStub& stub);

// Returns the answer of Why for display: why the last generation ended, the
// findings, what to do next, a table of the ranks with the outliers marked, and
// a table of the last rounds. `now`: when the answer arrived.
std::string FormatWhy(const std::string& job, const v1::WhyResponse& why,
                      absl::Time now);

// Returns the same as JSON, in the form of docs/observability.md. `now`: when
// the answer arrived.
std::string FormatWhyJson(const std::string& job, const v1::WhyResponse& why,
                          absl::Time now);

// Runs `coxswain certs`: makes a certificate authority in a folder, and
// certificates for the coordinator, an operator and each job. Overwrites no
// file; only their owner can read the keys.
//
//   ca.crt ca.key coordinator.crt coordinator.key operator.crt operator.key
//   job-NAME.crt job-NAME.key
//
// Returns what to print. Fails with ALREADY_EXISTS, naming the file; with
// NOT_FOUND, naming a file that is missing; and with errors of the disk.
absl::StatusOr<std::string> RunCerts(const CertsOptions& options,
                                     absl::Time now);

// Returns what `coxswain hooks` prints: the hooks of this program, or the
// canonical form of a spec. Fails with NOT_FOUND if the named hook does not
// exist, or with what is wrong with the spec. Calls no coordinator.
absl::StatusOr<std::string> DescribeHooks(const HooksOptions& options);

// Returns what `coxswain version` prints: the versions of this program, of the
// libraries that determine its wire format, and of what it was built with for
// GPUs. Ends with a newline.
std::string VersionText();

// Returns the part of VersionText about GPUs. `cuda` and `nccl_header` are
// CUDART_VERSION and NCCL_VERSION_CODE, 0 if built without; `nccl_library` is
// the version of the library that was loaded.
std::string GpuVersionText(int cuda, int nccl_header,
                           const absl::StatusOr<int>& nccl_library);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_COMMANDS_H_
