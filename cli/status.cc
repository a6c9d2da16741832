#include "cli/status.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "cli/plan_change.h"
#include "cli/terminal.h"
#include "client/rpc/stub_factory.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

TableRow MemberRow(const v1::MemberDescription& described) {
  const v1::Member& member = described.member();
  return {member.rank() < 0 ? "-" : absl::StrCat(member.rank()),
          absl::StrCat(member.identity().node(), "/", member.identity().slot()),
          member.host(),
          described.state(),
          absl::StrCat(described.step()),
          absl::FormatDuration(absl::Milliseconds(described.silent_ms())),
          member.address()};
}

// "4", or "3 (2..4)" of an elastic job.
std::string WorldSize(const v1::JobDescription& job) {
  const int least = job.min_world_size();
  if (least == 0 || least >= job.world_size()) {
    return absl::StrCat(job.world_size());
  }
  return absl::StrCat(job.members_size(), " (", least, "..", job.world_size(),
                      ")");
}

void AppendMembers(const v1::JobDescription& job, std::string* out) {
  if (job.members().empty() && job.spares().empty()) return;
  std::vector<TableRow> rows = {
      {"RANK", "WORKER", "HOST", "STATE", "STEP", "SILENT", "ADDRESS"}};
  for (const v1::MemberDescription& member : job.members()) {
    rows.push_back(MemberRow(member));
  }
  for (const v1::MemberDescription& spare : job.spares()) {
    rows.push_back(MemberRow(spare));
  }
  absl::StrAppend(out, AlignTable(rows));
}

void AppendJob(const v1::JobDescription& job, std::string* out) {
  absl::StrAppend(out, "job ", job.job(), ": ", job.state(), ", generation ",
                  job.generation(), ", world size ", WorldSize(job));
  if (job.attempt() > 0) absl::StrAppend(out, ", attempt ", job.attempt());
  if (job.has_plan()) {
    absl::StrAppend(out, ", hook ", OneLine(job.plan().hook()),
                    ", accumulation ", job.plan().accumulation_steps());
    const std::vector<std::string> changed = ChangedTerms(job.plan());
    if (!changed.empty()) {
      absl::StrAppend(out, ", ", OneLine(absl::StrJoin(changed, ", ")));
    }
  }
  absl::StrAppend(out, "\n");
  if (!job.last_event().empty()) {
    absl::StrAppend(out, "  last end: ", OneLine(job.last_event()), "\n");
  }
  AppendMembers(job, out);
}

nlohmann::json MemberJson(const v1::MemberDescription& described) {
  const v1::Member& member = described.member();
  return {{"node", member.identity().node()},
          {"slot", member.identity().slot()},
          {"rank", member.rank()},
          {"local_rank", member.local_rank()},
          {"incarnation", absl::StrCat(member.incarnation())},
          {"host", member.host()},
          {"address", member.address()},
          {"state", described.state()},
          {"step", described.step()},
          {"collective_sequence", described.collective_sequence()},
          {"payload_bytes", described.payload_bytes()},
          {"wire_bytes", described.wire_bytes()},
          {"silent_ms", described.silent_ms()}};
}

nlohmann::json MembersJson(
    const google::protobuf::RepeatedPtrField<v1::MemberDescription>& all) {
  nlohmann::json members = nlohmann::json::array();
  for (const v1::MemberDescription& member : all) {
    members.push_back(MemberJson(member));
  }
  return members;
}

nlohmann::json JobJson(const v1::JobDescription& job) {
  nlohmann::json plan = {{"version", job.plan().version()}};
  AddSettings(job.plan(), &plan);
  return {{"job", job.job()},
          {"state", job.state()},
          {"generation", job.generation()},
          {"world_size", job.world_size()},
          {"min_world_size", job.min_world_size()},
          {"attempt", job.attempt()},
          {"last_event", job.last_event()},
          {"plan", std::move(plan)},
          {"members", MembersJson(job.members())},
          {"spares", MembersJson(job.spares())}};
}

}  // namespace

std::string FormatTable(const v1::DescribeResponse& description) {
  std::string out =
      absl::StrCat("coordinator ", description.cluster_id(), ", term ",
                   description.term(), ", ", description.jobs_size(),
                   description.jobs_size() == 1 ? " job\n" : " jobs\n");
  for (const v1::JobDescription& job : description.jobs()) {
    AppendJob(job, &out);
  }
  return out;
}

std::string FormatJson(const v1::DescribeResponse& description) {
  nlohmann::json jobs = nlohmann::json::array();
  for (const v1::JobDescription& job : description.jobs()) {
    jobs.push_back(JobJson(job));
  }
  const nlohmann::json all = {{"cluster_id", description.cluster_id()},
                              {"term", description.term()},
                              {"jobs", std::move(jobs)}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

absl::StatusOr<v1::DescribeResponse> AskStatus(const StatusOptions& options,
                                               CoordinatorStub& stub,
                                               CancelSignal* cancel,
                                               int steps) {
  v1::DescribeRequest request;
  request.set_job(options.job);
  request.set_steps(steps);
  CallOptions call;
  call.timeout = options.timeout;
  call.cancel = cancel;
  auto response = stub.Describe(request, call);
  if (response.ok()) return response;
  return absl::Status(response.status().code(),
                      absl::StrCat("the coordinator at ", options.coordinator,
                                   " did not describe its jobs: ",
                                   response.status().message()));
}

absl::Status ShowStatus(const StatusOptions& options) {
  const auto stub =
      ConnectCoordinator(options.coordinator, RetryPolicy(), options.security);
  COXSWAIN_ASSIGN_OR_RETURN(const auto response,
                            AskStatus(options, *stub, nullptr));
  const std::string text =
      options.json ? FormatJson(response) : FormatTable(response);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    return absl::UnavailableError("cannot write to stdout");
  }
  return absl::OkStatus();
}

}  // namespace coxswain
