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

// The commands that need no more of the world than a stub, in a file each:
// NAME.cc. Those that tests give a world of their own have headers of their
// own.

// `coxswain serve`: runs a coordinator until SIGINT or SIGTERM. Called in the
// main thread, before any other is started.
absl::Status Serve(const ServeOptions& options);

// `coxswain run`: starts the workers of this node, stays until they end, and
// tells the coordinator of each end. Returns the exit status. Called in the
// main thread, before any other is started.
//
// Without a coordinator's address it runs one itself, on the loopback, with
// its state in a temporary folder that is removed at the end.
absl::StatusOr<int> Run(const RunOptions& options);

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

// The answer of GetPlan as a table for display: what differs from the defaults
// first, and a column for the next plan, if there is one, with what it changes.
std::string FormatPlans(const std::string& job,
                        const v1::GetPlanResponse& plans);

// The same as JSON: {"job", "plan": PLAN, "plan_next": PLAN or null}, where
// PLAN is server::PlanJson.
std::string FormatPlansJson(const std::string& job,
                            const v1::GetPlanResponse& plans);

// `coxswain why`: where each rank of a job is in its schedule, as text for
// stdout. Errors as FindJob.
absl::StatusOr<std::string> ShowWhy(const JobOptions& options,
                                    CoordinatorStub& stub);

// The answer of Why for display: the findings, a table of the ranks, of which
// the odd ones are marked, and one of the last rounds.
std::string FormatWhy(const std::string& job, const v1::WhyResponse& why);

// The same as JSON, as docs/observability.md has it. `now`: when the answer
// came.
std::string FormatWhyJson(const std::string& job, const v1::WhyResponse& why,
                          absl::Time now);

// `coxswain certs`: a certificate authority in a folder, and certificates for
// the coordinator, an operator and each job. Nothing is ever overwritten, and
// keys can be read by their owner only.
//
//   ca.crt ca.key coordinator.crt coordinator.key operator.crt operator.key
//   job-NAME.crt job-NAME.key
//
// Returns what to print. ALREADY_EXISTS names a file that is there already,
// NOT_FOUND one that is missing; other errors are those of the disk.
absl::StatusOr<std::string> RunCerts(const CertsOptions& options,
                                     absl::Time now);

// `coxswain hooks`: what the options ask for, to be printed: the hooks of this
// program, or the canonical form of a spec. Asks no coordinator. Errors are
// about the hook or the spec that was named.
absl::StatusOr<std::string> DescribeHooks(const HooksOptions& options);

// `coxswain version`: the version of this program and of the libraries that
// decide what it speaks on the wire, and what it was built with for GPUs. Ends
// with a newline.
std::string VersionText();

// The part of it about GPUs: versions as CUDART_VERSION and NCCL_VERSION_CODE,
// 0 where it was built without; and the library's as it is found now.
std::string GpuVersionText(int cuda, int nccl_header,
                           const absl::StatusOr<int>& nccl_library);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_COMMANDS_H_
