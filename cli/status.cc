#include "cli/status.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "cli/terminal.h"
#include "client/rpc/stub_factory.h"
#include "server/describe/json.h"

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
    const std::vector<std::string> changed = server::ChangedTerms(job.plan());
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

server::Json MembersJson(
    const google::protobuf::RepeatedPtrField<v1::MemberDescription>& all,
    absl::Time now) {
  server::Json members = server::Json::array();
  for (const v1::MemberDescription& member : all) {
    // No heartbeat is known of a worker that waits for a rank.
    const absl::Time heard = member.member().rank() < 0
                                 ? absl::InfinitePast()
                                 : now - absl::Milliseconds(member.silent_ms());
    members.push_back(server::MemberJson(member, heard));
    // A name of an earlier version.
    members.back()["silent_ms"] = member.silent_ms();
  }
  return members;
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

std::string FormatJson(const v1::DescribeResponse& description,
                       absl::Time now) {
  server::Json jobs = server::Json::array();
  for (const v1::JobDescription& job : description.jobs()) {
    server::Json json = server::JobJson(job);
    json["members"] = MembersJson(job.members(), now);
    json["spares"] = MembersJson(job.spares(), now);
    jobs.push_back(std::move(json));
  }
  return server::DumpLines({{"now", server::TimeJson(now)},
                            {"cluster_id", description.cluster_id()},
                            {"term", description.term()},
                            {"jobs", std::move(jobs)}});
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
  const std::string text = options.json
                               ? FormatJson(response, Clock::Real()->WallTime())
                               : FormatTable(response);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    return absl::UnavailableError("cannot write to stdout");
  }
  return absl::OkStatus();
}

}  // namespace coxswain
