#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "cli/command_line.h"
#include "cli/plan_change.h"
#include "client/device/selection.h"
#include "server/http/http_server.h"

namespace coxswain {
namespace {

constexpr char kNoCoordinator[] =
    "no coordinator: give --coordinator HOST:PORT, or set COXSWAIN_COORDINATOR";

std::string Check(const HooksOptions& hooks) {
  const int asked = (hooks.json ? 1 : 0) + (hooks.markdown ? 1 : 0) +
                    (hooks.check.empty() ? 0 : 1);
  if (asked > 1) return "give only one of --json, --markdown and --check";
  if (hooks.check.empty() || hooks.name.empty()) return "";
  return absl::StrCat(
      "--check takes the whole spec: put quotes around it, and leave out '",
      hooks.name, "'");
}

std::string Check(const ServeOptions& serve) {
  std::string wrong = CheckSecurity(serve.security, serve.listen);
  if (!wrong.empty()) return wrong;
  if (serve.http.empty()) {
    return serve.http_port_file.empty() && serve.http_hosts.empty()
               ? ""
               : "--http-port-file and --http-hosts need --http HOST:PORT";
  }
  server::HttpOptions http;
  http.listen = serve.http;
  http.insecure = serve.security.insecure;
  return std::string(http.Validate().message());
}

std::string CheckWorkers(const RunOptions& run) {
  const int64_t most = int64_t{run.nnodes.most} * run.nproc;
  if (most > kMaxWorkers) {
    return absl::StrCat(run.nnodes.most, " nodes with ", run.nproc,
                        " workers each are ", most,
                        " workers; a job has at most ", kMaxWorkers);
  }
  if (run.MinWorkers() > most) {
    return absl::StrCat("--min-workers ", run.min_workers,
                        " is more than --nnodes and --nproc allow, which is ",
                        most);
  }
  return "";
}

// Writes the mesh in its one form. Whether the plan has a pipeline is known to
// the program.
std::string CheckMesh(RunOptions& run) {
  if (run.mesh.empty()) return "";
  const auto mesh = ParseJobMesh(run.mesh, run.MinWorkers(), run.MaxWorkers());
  if (!mesh.ok()) return absl::StrCat("--mesh: ", mesh.status().message());
  run.mesh = mesh->ToString();
  return "";
}

std::string Check(RunOptions& run) {
  if (run.program.empty()) {
    return "no program given: write it after --, as in: coxswain run "
           "--nproc 2 -- ./train --epochs 3";
  }
  if (run.coordinator.empty() && run.nnodes.most > 1) {
    return absl::StrCat(
        "no coordinator for ", run.nnodes.most,
        " nodes: start one with `coxswain serve` and give --coordinator "
        "HOST:PORT, or set COXSWAIN_COORDINATOR");
  }
  if (!run.coordinator.empty() && run.job.empty()) {
    return "no job given: give --job NAME, or set COXSWAIN_JOB; all launchers "
           "of a job need the same name";
  }
  if (run.nproc == 0) {
    const auto gpus = ParseGpuRequest(run.gpus.empty() ? "none" : run.gpus);
    if (!gpus.ok()) return absl::StrCat("--gpus: ", gpus.status().message());
    run.nproc = std::max(1, gpus->count);
  }
  std::string workers = CheckWorkers(run);
  if (!workers.empty()) return workers;
  std::string mesh = CheckMesh(run);
  if (!mesh.empty()) return mesh;
  if (!run.coordinator.empty()) {
    std::string wrong = CheckSecurity(run.security, run.coordinator);
    if (!wrong.empty()) return wrong;
  }
  const auto plan = ReadPlanOverrides(run.plan);
  if (!plan.ok()) return absl::StrCat("--plan: ", plan.status().message());
  run.plan = {*plan};
  return "";
}

std::string CheckAsked(const std::string& coordinator, const std::string& job,
                       const ClientSecurity& security) {
  if (coordinator.empty()) return kNoCoordinator;
  const std::string wrong = job.empty() ? "" : CheckJob(job);
  return wrong.empty() ? CheckSecurity(security, coordinator) : wrong;
}

std::string Check(PlanSetOptions& set) {
  // The job's name may come before the changes.
  if (!set.changes.empty() && !absl::StrContains(set.changes.front(), '=')) {
    set.job = set.changes.front();
    set.changes.erase(set.changes.begin());
  }
  std::string wrong = CheckAsked(set.coordinator, set.job, set.security);
  if (!wrong.empty()) return wrong;
  const auto change = PlanChange::Parse(set.changes);
  if (!change.ok()) return std::string(change.status().message());
  if (set.changes.empty() || (set.changes.size() == 1 && change->at_step)) {
    return "nothing to change: write NAME=VALUE, as in accumulation=8";
  }
  return "";
}

// Writes the number of chunks where a spec has it.
std::string Check(PlanScheduleOptions& plan) {
  if (plan.ranks == 0 || plan.accumulation == 0) {
    return "give --ranks and --accumulation, as in --ranks 4 --accumulation 8";
  }
  if (plan.chunks == 0) return "";
  if (plan.pipeline != "interleaved") {
    return absl::StrCat("--chunks is for --pipeline interleaved, not for ",
                        plan.pipeline);
  }
  plan.pipeline = absl::StrCat("interleaved(chunks=", plan.chunks, ")");
  return "";
}

}  // namespace

std::string CheckCombination(CommandLine& line) {
  using Command = CommandLine::Command;
  switch (line.command) {
    case Command::kServe:
      return Check(line.serve);
    case Command::kRun:
      return Check(line.run);
    case Command::kStatus:
      if (line.status.json && line.status.watch) {
        return "give only one of --json and --watch";
      }
      return CheckAsked(line.status.coordinator, line.status.job,
                        line.status.security);
    case Command::kLogs:
      return CheckAsked(line.logs.coordinator, line.logs.job,
                        line.logs.security);
    case Command::kPlanShow:
      return CheckAsked(line.plan_show.coordinator, line.plan_show.job,
                        line.plan_show.security);
    case Command::kPlanSet:
      return Check(line.plan_set);
    case Command::kPlanSchedule:
      return Check(line.plan_schedule);
    case Command::kWhy:
      return CheckAsked(line.why.coordinator, line.why.job, line.why.security);
    case Command::kCheckpoint:
      return CheckAsked(line.checkpoint.coordinator, line.checkpoint.job,
                        line.checkpoint.security);
    case Command::kCerts:
      return CheckCerts(line.certs);
    case Command::kHooks:
      return Check(line.hooks);
    default:
      return "";
  }
}

}  // namespace coxswain
