#include "cli/commands.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "cli/job_query.h"
#include "cli/job_words.h"
#include "cli/terminal.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/schedule.pb.h"
#include "server/describe/json.h"

namespace coxswain {
namespace {

std::string Age(int64_t milliseconds) {
  return absl::FormatDuration(absl::Milliseconds(milliseconds));
}

std::string OrDash(const std::string& text) {
  return text.empty() ? "-" : text;
}

// The last ticket of a rank; dashes if it has announced none. Of one that an
// earlier coordinator has left, its last step.
TableRow TicketCells(const v1::RankProgress& rank) {
  if (rank.stream().empty()) {
    return {"-", "-", rank.step() > 0 ? absl::StrCat(rank.step()) : "-",
            "-", "-", "-"};
  }
  return {rank.stream(),
          absl::StrCat(rank.round()),
          absl::StrCat(rank.step()),
          absl::StrCat(rank.micro_batches_in_window(), "/", rank.window()),
          Age(rank.ticket_age_ms()),
          rank.decided() ? "yes" : "no"};
}

// What its heartbeats have reported.
TableRow ProgressCells(const v1::RankProgress& rank) {
  if (rank.restored()) return {"-", "-", "-", "-", "-", "-"};
  return {absl::StrCat(rank.micro_batches()),
          absl::StrCat(rank.collective_sequence()),
          absl::StrCat(rank.bucket()),
          Age(rank.idle_ms()),
          Age(rank.silent_ms()),
          OrDash(rank.activity())};
}

// Where it is in its pipeline: "2F7", for how long, and whom it waits for.
TableRow PipelineCells(const v1::RankProgress& rank) {
  if (rank.pipeline().empty()) return {"-", "-", "-"};
  const auto& others = rank.waits_for();
  return {rank.pipeline(), Age(rank.pipeline_ms()),
          others.empty() ? "-" : absl::StrJoin(others, " ")};
}

TableRow RankRow(const v1::RankProgress& rank) {
  TableRow row = {rank.odd() ? "!" : "", absl::StrCat(rank.rank()),
                  rank.member(), rank.state()};
  for (std::string& cell : TicketCells(rank)) row.push_back(std::move(cell));
  for (std::string& cell : ProgressCells(rank)) row.push_back(std::move(cell));
  for (std::string& cell : PipelineCells(rank)) row.push_back(std::move(cell));
  row.push_back(OrDash(rank.departure()));
  return row;
}

void AppendRanks(const v1::WhyResponse& why, std::string* out) {
  if (why.ranks().empty()) return;
  std::vector<TableRow> rows = {
      {"",         "RANK",     "MEMBER", "STATE",     "STREAM",
       "ROUND",    "STEP",     "WINDOW", "TICKET",    "DECIDED",
       "BATCHES",  "SEQUENCE", "BUCKET", "IDLE",      "SILENT",
       "ACTIVITY", "PIPELINE", "FOR",    "WAITS FOR", "HOW IT ENDED"}};
  bool outliers = false, departed = false, pipeline = false;
  for (const v1::RankProgress& rank : why.ranks()) {
    rows.push_back(RankRow(rank));
    outliers = outliers || rank.odd();
    departed = departed || !rank.departure().empty();
    pipeline = pipeline || !rank.pipeline().empty();
  }
  if (!pipeline) {
    for (TableRow& row : rows) row.erase(row.end() - 4, row.end() - 1);
  }
  if (!departed) {
    for (TableRow& row : rows) row.pop_back();
  }
  absl::StrAppend(
      out, AlignTable(rows),
      outliers ? "! differs from the other ranks, or is behind\n" : "");
}

// Returns the line where nothing was found out, which need not mean that all is
// well.
absl::string_view WithoutFindings(const v1::WhyResponse& why) {
  if (!why.last_event().empty() && why.state() != "running") {
    return EndedWell(why.last_event())
               ? "- no failure: nothing is left to do\n"
               : "- no more than that is known of its end\n";
  }
  if (why.state() == "running") return "- no problem found\n";
  return "- no generation of it has begun yet\n";
}

// Findings, but for the end that was shown already, and what to do about the
// first that needs it.
void AppendFindings(const v1::WhyResponse& why, const std::string& end,
                    std::string* out) {
  if (why.findings().empty()) absl::StrAppend(out, WithoutFindings(why));
  // One that runs goes on after its last end, whatever that was.
  const bool runs = why.state() == "running";
  std::string step = runs || EndedWell(end) ? "" : NextStep(end);
  for (const std::string& finding : why.findings()) {
    const bool shown =
        !end.empty() && (finding == why.last_event() || finding == end);
    if (shown) continue;
    absl::StrAppend(out, "- ", OneLine(finding), "\n");
    if (step.empty() && runs) step = NextStep(finding);
  }
  if (!step.empty()) absl::StrAppend(out, "next: ", step, "\n");
}

void AppendHistory(const v1::WhyResponse& why, std::string* out) {
  if (why.history().empty()) return;
  std::vector<TableRow> rows = {{"STREAM", "ROUND", "STEP", "PLAN", "DECISION",
                                 "AGO", "TICKETS TOOK", "LAST RANK", "WHY"}};
  for (const v1::RoundRecord& round : why.history()) {
    rows.push_back({round.stream(), absl::StrCat(round.round()),
                    absl::StrCat(round.step()),
                    absl::StrCat(round.plan_version()),
                    round.commit() ? "commit" : "skip", Age(round.age_ms()),
                    Age(round.tickets_ms()), absl::StrCat(round.last_rank()),
                    OrDash(round.reason())});
  }
  absl::StrAppend(out, "the last rounds:\n", AlignTable(rows));
}

using server::Json;
using server::TimeJson;

// Ages count back from `at`. Fields that end in _ms are names of an earlier
// version.
Json RankJson(const v1::RankProgress& rank, absl::Time at) {
  const auto before = [&](int64_t milliseconds) {
    return TimeJson(at - absl::Milliseconds(milliseconds));
  };
  Json json = {
      {"rank", rank.rank()},
      {"member", rank.member()},
      {"state", rank.state()},
      {"odd", rank.odd()},
      {"stream", rank.stream()},
      {"round", rank.round()},
      {"step", rank.step()},
      {"micro_batches_in_window", rank.micro_batches_in_window()},
      {"window", rank.window()},
      {"decided", rank.decided()},
      {"ticket_at",
       rank.stream().empty() ? Json() : before(rank.ticket_age_ms())},
      {"ticket_age_ms", rank.ticket_age_ms()},
      {"collective_sequence", rank.collective_sequence()},
      {"bucket", rank.bucket()},
      {"micro_batches", rank.micro_batches()},
      {"progressed_at", rank.restored() ? Json() : before(rank.idle_ms())},
      {"idle_ms", rank.idle_ms()},
      {"heard_at", rank.restored() ? Json() : before(rank.silent_ms())},
      {"silent_ms", rank.silent_ms()},
      {"activity", rank.activity()},
      {"departure", rank.departure()},
      {"restored", rank.restored()}};
  if (rank.pipeline().empty()) return json;
  Json waits_for = Json::array();
  for (const int other : rank.waits_for()) waits_for.push_back(other);
  json["pipeline"] = {{"action", rank.pipeline()},
                      {"step", rank.pipeline_step()},
                      {"seconds", absl::ToDoubleSeconds(
                                      absl::Milliseconds(rank.pipeline_ms()))},
                      {"waits_for", std::move(waits_for)}};
  return json;
}

Json RoundJson(const v1::RoundRecord& round, absl::Time at) {
  Json json = server::RoundJson(round, at - absl::Milliseconds(round.age_ms()),
                                absl::Milliseconds(round.tickets_ms()));
  json["age_ms"] = round.age_ms();
  json["tickets_ms"] = round.tickets_ms();
  return json;
}

}  // namespace

absl::StatusOr<std::string> ShowWhy(const JobOptions& options,
                                    CoordinatorStub& stub) {
  v1::WhyRequest request;
  request.set_job(options.job);
  if (options.job.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(const FoundJob found,
                              FindJob(stub, options.job, options.timeout));
    request.set_job(found.job.job());
  }
  CallOptions call;
  call.timeout = options.timeout;
  const auto why = stub.Why(request, call);
  if (!why.ok()) {
    return ExplainCall(
        stub, "did not report where the ranks are",
        NameKnownJobs(stub, options.job, options.timeout, why.status()));
  }
  const absl::Time now = Clock::Real()->WallTime();
  return options.json ? FormatWhyJson(request.job(), *why, now)
                      : FormatWhy(request.job(), *why, now);
}

std::string FormatWhy(const std::string& job, const v1::WhyResponse& why,
                      absl::Time now) {
  std::string out = absl::StrCat("job ", job, ": ", why.state(),
                                 ", generation ", why.generation(), "\n");
  const std::string end = WithoutForming(why.last_event(), why.forming());
  absl::StrAppend(&out, LastEndLine(end, why.last_event_ms(), now),
                  FormingLine(why.forming()));
  AppendFindings(why, end, &out);
  AppendRanks(why, &out);
  AppendHistory(why, &out);
  return out;
}

std::string FormatWhyJson(const std::string& job, const v1::WhyResponse& why,
                          absl::Time now) {
  const absl::Time at = now - absl::Milliseconds(why.ended_ms());
  Json ranks = Json::array(), outliers = Json::array();
  for (const v1::RankProgress& rank : why.ranks()) {
    ranks.push_back(RankJson(rank, at));
    if (rank.odd()) outliers.push_back(rank.rank());
  }
  Json history = Json::array();
  for (const v1::RoundRecord& round : why.history()) {
    history.push_back(RoundJson(round, at));
  }
  // After a restart of the coordinator it may not be known when.
  const bool ended = why.state() == "ended" && why.ended_ms() > 0;
  const Json last_event =
      why.last_event_ms() > 0
          ? TimeJson(now - absl::Milliseconds(why.last_event_ms()))
          : Json();
  Json findings = Json::array();
  for (const std::string& finding : why.findings()) findings.push_back(finding);
  return server::DumpLines({{"now", TimeJson(now)},
                            {"job", job},
                            {"state", why.state()},
                            {"generation", why.generation()},
                            {"last_event", why.last_event()},
                            {"last_event_at", last_event},
                            {"forming", why.forming()},
                            {"ended_at", ended ? TimeJson(at) : Json()},
                            {"findings", std::move(findings)},
                            {"odd_ranks", std::move(outliers)},
                            {"ranks", std::move(ranks)},
                            {"history", std::move(history)}});
}

}  // namespace coxswain
