#include "cli/status.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mesh.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "cli/job_query.h"
#include "cli/job_words.h"
#include "cli/terminal.h"
#include "client/rpc/stub_factory.h"
#include "server/describe/json.h"

namespace coxswain {
namespace {

// Ranks that one line names.
constexpr int kMaxAwaited = 8;
// Of a line about one of several jobs.
constexpr size_t kMaxNoteBytes = 80;

std::string OfCoordinator(absl::string_view coordinator) {
  return coordinator.empty() ? ""
                             : absl::StrCat(" --coordinator ", coordinator);
}

// A member that a coordinator before this one has left: what is not known of it
// is a dash.
TableRow MemberRow(const v1::MemberDescription& described) {
  const v1::Member& member = described.member();
  const bool restored = described.restored();
  return {
      member.rank() < 0 ? "-" : absl::StrCat(member.rank()),
      member.coordinates().empty() ? "-" : member.coordinates(),
      absl::StrCat(member.identity().node(), "/", member.identity().slot()),
      member.host(),
      described.state(),
      restored && described.step() == 0 ? "-" : absl::StrCat(described.step()),
      restored
          ? "-"
          : absl::FormatDuration(absl::Milliseconds(described.silent_ms())),
      member.address(),
      described.departure()};
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
  if (job.members().empty() && job.spares().empty()) {
    if (job.state() == "ended" && job.generation() > 0) {
      absl::StrAppend(out,
                      "  its ranks are not known any more: the coordinator was "
                      "restarted since then");
      if (job.step() > 0) absl::StrAppend(out, "; last step ", job.step());
      absl::StrAppend(out, "\n");
    }
    return;
  }
  std::vector<TableRow> rows = {{"RANK", "MESH", "WORKER", "HOST", "STATE",
                                 "STEP", "SILENT", "ADDRESS", "HOW IT ENDED"}};
  bool restored = false, departed = false, placed = false;
  for (const auto* const list : {&job.members(), &job.spares()}) {
    for (const v1::MemberDescription& member : *list) {
      rows.push_back(MemberRow(member));
      restored = restored || member.restored();
      departed = departed || !member.departure().empty();
      placed = placed || !member.member().coordinates().empty();
    }
  }
  if (!departed) {
    for (TableRow& row : rows) row.pop_back();
  }
  if (!placed) {
    for (TableRow& row : rows) row.erase(row.begin() + 1);
  }
  absl::StrAppend(out, AlignTable(rows),
                  restored ? "  -: not known, since the coordinator was "
                             "restarted\n"
                           : "");
}

// "rank 1 (b/7 on host-b)", or "ranks 1, 2 and 5 more".
std::string AwaitedText(const v1::JobDescription& job) {
  const auto& ranks = job.wait().ranks();
  if (ranks.size() != 1) {
    std::string text = "ranks ";
    const int shown = std::min(ranks.size(), kMaxAwaited);
    absl::StrAppend(&text,
                    absl::StrJoin(ranks.begin(), ranks.begin() + shown, ", "));
    if (ranks.size() > shown) {
      absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
    }
    return text;
  }
  std::string text = absl::StrCat("rank ", ranks[0]);
  for (const v1::MemberDescription& member : job.members()) {
    if (member.member().rank() != ranks[0]) continue;
    const v1::WorkerIdentity& identity = member.member().identity();
    const std::string place =
        absl::StrCat(identity.node(), "/", identity.slot());
    absl::StrAppend(&text, " (",
                    WithCoordinates(member.member().coordinates(), place),
                    " on ", member.member().host(), ")");
  }
  return text;
}

// Returns whether all ranks are at the same point, so that none waits for
// another.
bool NoOneWaits(const v1::JobDescription& job) {
  const int ranks = job.wait().ranks_size();
  return ranks == 0 || ranks == job.world_size();
}

void AppendWait(const v1::JobDescription& job, absl::Time now,
                absl::string_view coordinator, std::string* out) {
  if (!job.has_wait()) return;
  const v1::RankWait& wait = job.wait();
  const std::string since = MomentText(wait.waited_ms(), now);
  absl::StrAppend(
      out, "  ",
      NoOneWaits(job)
          ? absl::StrCat("stalled since ", since)
          : absl::StrCat("the others wait for ", OneLine(AwaitedText(job)),
                         " since ", since),
      ": ", OneLine(wait.finding()), "\n  look further: coxswain why ",
      job.job(), OfCoordinator(coordinator), "\n");
}

void AppendJob(const v1::JobDescription& job, absl::Time now,
               absl::string_view coordinator, std::string* out) {
  absl::StrAppend(out, "job ", job.job(), ": ", job.state(), ", generation ",
                  job.generation(), ", world size ", WorldSize(job));
  if (!job.mesh().empty()) {
    absl::StrAppend(out, ", mesh ", OneLine(job.mesh()));
  }
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
  if (job.has_ring()) {
    absl::StrAppend(out, "  ring: ", OneLine(job.ring().order()),
                    ", since generation ", job.ring().since_generation(), "; ",
                    OneLine(job.ring().reason()), "\n");
  }
  if (!job.placement().empty()) {
    absl::StrAppend(out, "  placement: ", OneLine(job.placement()), "\n");
  }
  AppendWait(job, now, coordinator, out);
  const std::string end = WithoutForming(job.last_event(), job.forming());
  absl::StrAppend(out, LastEndLine(end, job.last_event_ms(), now),
                  FormingLine(job.forming()));
  if (job.state() != "running" && !end.empty() && !EndedWell(end)) {
    const std::string step = NextStep(end);
    if (!step.empty()) absl::StrAppend(out, "  next: ", step, "\n");
    absl::StrAppend(out, "  look further: coxswain why ", job.job(),
                    OfCoordinator(coordinator), "\n");
  }
  AppendMembers(job, out);
}

// "2 of 3": the members that have not ended, of those that it may have.
std::string WorkersText(const v1::JobDescription& job) {
  int here = 0;
  for (const v1::MemberDescription& member : job.members()) {
    if (member.state() != "left" && member.state() != "lost") ++here;
  }
  if (job.state() == "ended") here = 0;
  return absl::StrCat(here, " of ", job.world_size());
}

// What to know of a job in a few words.
std::string NoteOn(const v1::JobDescription& job) {
  if (job.has_wait()) {
    return absl::StrCat(NoOneWaits(job)
                            ? "no progress"
                            : absl::StrCat("waits for ", AwaitedText(job)),
                        " for ", AgeText(job.wait().waited_ms()));
  }
  if (!job.forming().empty()) return job.forming();
  return job.state() == "ended" ? job.last_event() : "";
}

void AppendJobs(const v1::DescribeResponse& description, absl::Time now,
                absl::string_view coordinator, std::string* out) {
  std::vector<TableRow> rows = {
      {"JOB", "STATE", "GENERATION", "WORKERS", "STEP", "LAST END", "NOTE"}};
  for (const v1::JobDescription& job : description.jobs()) {
    int64_t step = job.step();
    for (const v1::MemberDescription& member : job.members()) {
      step = std::max(step, member.step());
    }
    rows.push_back(
        {job.job(), job.state(), absl::StrCat(job.generation()),
         WorkersText(job), absl::StrCat(step),
         job.last_event_ms() > 0 ? AgoText(job.last_event_ms(), now) : "-",
         Shorten(NoteOn(job), kMaxNoteBytes)});
  }
  absl::StrAppend(out, AlignTable(rows), "one of them: coxswain status --job ",
                  "NAME", OfCoordinator(coordinator), "\n");
}

server::Json MembersJson(
    const google::protobuf::RepeatedPtrField<v1::MemberDescription>& all,
    absl::Time now) {
  server::Json members = server::Json::array();
  for (const v1::MemberDescription& member : all) {
    // No heartbeat is known of a worker that waits for a rank, nor of one that
    // an earlier coordinator has left.
    const absl::Time heard = member.member().rank() < 0 || member.restored()
                                 ? absl::InfinitePast()
                                 : now - absl::Milliseconds(member.silent_ms());
    members.push_back(server::MemberJson(member, heard));
    // A name of an earlier version.
    members.back()["silent_ms"] = member.silent_ms();
  }
  return members;
}

}  // namespace

std::string FormatTable(const v1::DescribeResponse& description, absl::Time now,
                        absl::string_view coordinator) {
  std::string out =
      absl::StrCat("coordinator ", description.cluster_id(), ", term ",
                   description.term(), ", ", description.jobs_size(),
                   description.jobs_size() == 1 ? " job\n" : " jobs\n");
  if (description.jobs_size() > 1) {
    AppendJobs(description, now, coordinator, &out);
  } else if (description.jobs_size() == 1) {
    AppendJob(description.jobs(0), now, coordinator, &out);
  }
  return out;
}

std::string FormatJson(const v1::DescribeResponse& description,
                       absl::Time now) {
  server::Json jobs = server::Json::array();
  for (const v1::JobDescription& job : description.jobs()) {
    const absl::Time last_event =
        job.last_event_ms() == 0
            ? absl::InfinitePast()
            : now - absl::Milliseconds(job.last_event_ms());
    server::Json json = server::JobJson(
        job, last_event, now - absl::Milliseconds(job.wait().waited_ms()));
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
  const absl::Status error =
      NameKnownJobs(stub, options.job, options.timeout, response.status());
  return absl::Status(error.code(),
                      absl::StrCat("the coordinator at ", options.coordinator,
                                   " did not describe ",
                                   options.job.empty() ? "its jobs" : "the job",
                                   ": ", error.message()));
}

absl::Status ShowStatus(const StatusOptions& options) {
  const auto stub =
      ConnectCoordinator(options.coordinator, RetryPolicy(), options.security);
  COXSWAIN_ASSIGN_OR_RETURN(const auto response,
                            AskStatus(options, *stub, nullptr));
  const absl::Time now = Clock::Real()->WallTime();
  const std::string text =
      options.json ? FormatJson(response, now)
                   : FormatTable(response, now, options.coordinator);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    return absl::UnavailableError("cannot write to stdout");
  }
  return absl::OkStatus();
}

}  // namespace coxswain
