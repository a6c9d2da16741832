#include "cli/commands.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "cli/job_query.h"
#include "cli/plan_change.h"
#include "cli/terminal.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/schedule.pb.h"
#include "schedule/plan.h"
#include "schedule/plan_words.h"
#include "schedule/schedule_wire.h"
#include "schedule/terms.h"
#include "server/describe/json.h"

namespace coxswain {
namespace {

constexpr char kRunning[] = "running";

// A setting of a plan as text; marked if it is not the default.
struct Line {
  std::string name;
  std::string value;
  bool marked = false;
};

std::vector<Line> LinesOf(const v1::Plan& plan) {
  std::vector<Line> lines;
  for (const schedule::NamedValue& value : server::ValuesOf(plan)) {
    lines.push_back({value.word, value.shown, false});
  }
  if (plan.global_micro_batches() > 0) {
    lines.push_back({"micro-batches of all ranks",
                     absl::StrCat(plan.global_micro_batches()), false});
  }
  const std::map<std::string, std::string> defaults = schedule::Terms().ToMap();
  std::vector<Line> unmarked;
  for (const auto& [name, value] : server::AllTerms(plan)) {
    const auto found = defaults.find(name);
    const bool marked = found == defaults.end() || found->second != value;
    (marked ? lines : unmarked).push_back({name, value, marked});
  }
  lines.insert(lines.end(), unmarked.begin(), unmarked.end());
  return lines;
}

std::string ValueOf(const std::vector<Line>& lines, const std::string& name) {
  for (const Line& line : lines) {
    if (line.name == name) return line.value;
  }
  return "-";
}

absl::StatusOr<v1::GetPlanResponse> AskForPlans(CoordinatorStub& stub,
                                                const std::string& job,
                                                const CallOptions& call) {
  v1::GetPlanRequest request;
  request.set_job(job);
  auto plans = stub.GetPlan(request, call);
  if (plans.ok()) return plans;
  return ExplainCall(stub, "did not return the plan", plans.status());
}

// Returns whether the generation that runs can change its plan.
bool CanChangeNow(const FoundJob& found, const schedule::Plan& current) {
  return found.job.state() == kRunning &&
         current.terms.enforcement != schedule::Enforcement::kOff;
}

// Returns where the change begins: as requested, or else as soon as it can.
absl::StatusOr<int64_t> Beginning(const PlanChange& change,
                                  const FoundJob& found,
                                  const schedule::Plan& current,
                                  const schedule::Plan& wanted) {
  const absl::Status within = CheckChangeWithinGeneration(current, wanted);
  if (!change.at_step.has_value()) {
    if (!CanChangeNow(found, current) || ChangesAverager(current, wanted)) {
      return schedule::Plan::kWithNextGeneration;
    }
    COXSWAIN_RETURN_IF_ERROR(within);
    return schedule::Plan::kAtNextStep;
  }
  if (*change.at_step == schedule::Plan::kWithNextGeneration)
    return schedule::Plan::kWithNextGeneration;
  if (found.job.state() != kRunning) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", found.job.job(), " is ", found.job.state(),
                     ", so the change cannot begin at a step; write "
                     "at=generation"));
  }
  if (!CanChangeNow(found, current)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the plan of job ", found.job.job(),
                     " has enforcement=off, so its ranks receive no other plan "
                     "while they run; write at=generation"));
  }
  COXSWAIN_RETURN_IF_ERROR(within);
  return *change.at_step;
}

std::string AcceptedText(const std::string& job, const v1::Plan& current,
                         const v1::Plan& newest, const v1::Plan& accepted) {
  const std::vector<std::string> differences = Differences(current, accepted);
  std::string text = absl::StrCat(
      "version ", accepted.version(), " of the plan of job ", job, ": ",
      differences.empty() ? "the same settings as the plan in force"
                          : absl::StrJoin(differences, ", "),
      ", from ", BeginningText(accepted.at_step()));
  if (newest.version() != current.version() &&
      newest.version() != accepted.version()) {
    absl::StrAppend(&text, "; it replaces version ", newest.version(),
                    ", which has not begun");
  }
  return absl::StrCat(text, "\n");
}

}  // namespace

absl::StatusOr<std::string> ShowPlan(const JobOptions& options,
                                     CoordinatorStub& stub) {
  COXSWAIN_ASSIGN_OR_RETURN(const FoundJob found,
                            FindJob(stub, options.job, options.timeout));
  CallOptions call;
  call.timeout = options.timeout;
  const std::string& job = found.job.job();
  COXSWAIN_ASSIGN_OR_RETURN(const v1::GetPlanResponse plans,
                            AskForPlans(stub, job, call));
  return options.json ? FormatPlansJson(job, plans) : FormatPlans(job, plans);
}

absl::StatusOr<std::string> SetPlan(const PlanSetOptions& options,
                                    CoordinatorStub& stub,
                                    RandomSource* random) {
  COXSWAIN_ASSIGN_OR_RETURN(const PlanChange change,
                            PlanChange::Parse(options.changes));
  COXSWAIN_ASSIGN_OR_RETURN(const FoundJob found,
                            FindJob(stub, options.job, options.timeout));
  CallOptions call;
  call.timeout = options.timeout;
  const std::string& job = found.job.job();
  COXSWAIN_ASSIGN_OR_RETURN(const v1::GetPlanResponse plans,
                            AskForPlans(stub, job, call));
  const v1::Plan& newest = plans.has_next() ? plans.next() : plans.current();
  // It may have terms of a newer version, which are dropped.
  std::map<std::string, std::string> unknown;
  const schedule::Plan current =
      schedule::KnownPartOf(plans.current(), &unknown);
  COXSWAIN_ASSIGN_OR_RETURN(const schedule::Plan before,
                            schedule::PlanFromWire(newest));
  COXSWAIN_ASSIGN_OR_RETURN(schedule::Plan wanted, change.ApplyTo(before));
  COXSWAIN_ASSIGN_OR_RETURN(wanted.at_step,
                            Beginning(change, found, current, wanted));
  if (!plans.has_next() && wanted.SameSettings(before)) {
    return absl::StrCat("no change: the plan of job ", job,
                        " already has these settings, in version ",
                        newest.version(), "\n");
  }
  v1::ProposePlanRequest request;
  *request.mutable_plan() = newest;
  std::vector<std::string> terms;
  for (const auto& [name, value] : change.words) {
    if (schedule::IsTerm(name)) terms.push_back(name);
  }
  schedule::ChangeWire(wanted, terms, request.mutable_plan());
  request.set_job(job);
  request.set_expected_version(options.expect > 0 ? options.expect
                                                  : newest.version());
  *request.mutable_fence() = OperatorFence(found, random);
  const auto accepted = stub.ProposePlan(request, call);
  if (!accepted.ok()) {
    return ExplainCall(stub, "did not accept the plan", accepted.status());
  }
  return AcceptedText(job, plans.current(), newest, accepted->next());
}

std::string FormatPlans(const std::string& job,
                        const v1::GetPlanResponse& plans) {
  const std::vector<Line> current = LinesOf(plans.current());
  const std::vector<Line> next = LinesOf(plans.next());
  std::string out = absl::StrCat("job ", job, ": version ",
                                 plans.current().version(), " of its plan");
  TableRow heading = {"", "NAME",
                      absl::StrCat("VERSION ", plans.current().version())};
  if (plans.has_next()) {
    absl::StrAppend(&out, "; version ", plans.next().version(), " begins with ",
                    BeginningText(plans.next().at_step()));
    heading.push_back(absl::StrCat("VERSION ", plans.next().version()));
  }
  std::vector<TableRow> rows = {heading};
  for (const Line& line : current) {
    rows.push_back({line.marked ? "*" : "", line.name, line.value});
    if (!plans.has_next()) continue;
    const std::string value = ValueOf(next, line.name);
    rows.back().push_back(value == line.value ? "" : value);
  }
  absl::StrAppend(&out, "\n", AlignTable(rows));
  if (!server::ChangedTerms(plans.current()).empty()) {
    absl::StrAppend(&out, "* not the default\n");
  }
  return out;
}

std::string FormatPlansJson(const std::string& job,
                            const v1::GetPlanResponse& plans) {
  server::Json json = {{"job", job},
                       {"plan", server::PlanJson(plans.current())},
                       {"plan_next", nullptr}};
  if (plans.has_next()) json["plan_next"] = server::PlanJson(plans.next());
  server::AddAlias("current", "plan", &json);
  server::AddAlias("next", "plan_next", &json);
  return server::DumpLines(json);
}

}  // namespace coxswain
