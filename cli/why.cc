#include "cli/commands.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "cli/job_query.h"
#include "cli/terminal.h"
#include "client/rpc/coordinator_stub.h"
#include "nlohmann/json.hpp"
#include "proto/schedule.pb.h"

namespace coxswain {
namespace {

std::string Age(int64_t milliseconds) {
  return absl::FormatDuration(absl::Milliseconds(milliseconds));
}

std::string OrDash(const std::string& text) {
  return text.empty() ? "-" : text;
}

// What a rank announced last; dashes if nothing.
TableRow TicketCells(const v1::RankProgress& rank) {
  if (rank.stream().empty()) return {"-", "-", "-", "-", "-", "-"};
  return {rank.stream(),
          absl::StrCat(rank.round()),
          absl::StrCat(rank.step()),
          absl::StrCat(rank.micro_batches_in_window(), "/", rank.window()),
          Age(rank.ticket_age_ms()),
          rank.decided() ? "yes" : "no"};
}

TableRow RankRow(const v1::RankProgress& rank) {
  TableRow row = {rank.odd() ? "!" : "", absl::StrCat(rank.rank()),
                  rank.member(), rank.state()};
  for (std::string& cell : TicketCells(rank)) row.push_back(std::move(cell));
  row.push_back(absl::StrCat(rank.micro_batches()));
  row.push_back(absl::StrCat(rank.collective_sequence()));
  row.push_back(absl::StrCat(rank.bucket()));
  row.push_back(Age(rank.idle_ms()));
  row.push_back(Age(rank.silent_ms()));
  row.push_back(OrDash(rank.activity()));
  return row;
}

void AppendRanks(const v1::WhyResponse& why, std::string* out) {
  if (why.ranks().empty()) return;
  std::vector<TableRow> rows = {{"", "RANK", "MEMBER", "STATE", "STREAM",
                                 "ROUND", "STEP", "WINDOW", "TICKET", "DECIDED",
                                 "BATCHES", "SEQUENCE", "BUCKET", "IDLE",
                                 "SILENT", "ACTIVITY"}};
  bool odd = false;
  for (const v1::RankProgress& rank : why.ranks()) {
    rows.push_back(RankRow(rank));
    odd = odd || rank.odd();
  }
  absl::StrAppend(out, AlignTable(rows), odd ? "! odd\n" : "");
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

nlohmann::json RankJson(const v1::RankProgress& rank) {
  return {{"rank", rank.rank()},
          {"member", rank.member()},
          {"state", rank.state()},
          {"odd", rank.odd()},
          {"stream", rank.stream()},
          {"round", rank.round()},
          {"step", rank.step()},
          {"micro_batches_in_window", rank.micro_batches_in_window()},
          {"window", rank.window()},
          {"decided", rank.decided()},
          {"ticket_age_ms", rank.ticket_age_ms()},
          {"collective_sequence", rank.collective_sequence()},
          {"bucket", rank.bucket()},
          {"micro_batches", rank.micro_batches()},
          {"idle_ms", rank.idle_ms()},
          {"silent_ms", rank.silent_ms()},
          {"activity", rank.activity()}};
}

nlohmann::json RoundJson(const v1::RoundRecord& round) {
  return {{"stream", round.stream()},
          {"round", round.round()},
          {"step", round.step()},
          {"commit", round.commit()},
          {"reason", round.reason()},
          {"age_ms", round.age_ms()},
          {"tickets_ms", round.tickets_ms()},
          {"last_rank", round.last_rank()},
          {"plan_version", round.plan_version()}};
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
  if (!why.ok()) return ExplainCall(stub, "did not tell why", why.status());
  return options.json ? FormatWhyJson(request.job(), *why)
                      : FormatWhy(request.job(), *why);
}

std::string FormatWhy(const std::string& job, const v1::WhyResponse& why) {
  std::string out = absl::StrCat("job ", job, ": ", why.state(),
                                 ", generation ", why.generation(), "\n");
  if (!why.last_event().empty()) {
    absl::StrAppend(&out, "  last end: ", OneLine(why.last_event()), "\n");
  }
  for (const std::string& finding : why.findings()) {
    absl::StrAppend(&out, "- ", OneLine(finding), "\n");
  }
  if (why.findings().empty()) absl::StrAppend(&out, "- nothing is odd\n");
  AppendRanks(why, &out);
  AppendHistory(why, &out);
  return out;
}

std::string FormatWhyJson(const std::string& job, const v1::WhyResponse& why) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const v1::RankProgress& rank : why.ranks()) {
    ranks.push_back(RankJson(rank));
  }
  nlohmann::json history = nlohmann::json::array();
  for (const v1::RoundRecord& round : why.history()) {
    history.push_back(RoundJson(round));
  }
  nlohmann::json findings = nlohmann::json::array();
  for (const std::string& finding : why.findings()) findings.push_back(finding);
  const nlohmann::json all = {{"job", job},
                              {"state", why.state()},
                              {"generation", why.generation()},
                              {"last_event", why.last_event()},
                              {"findings", std::move(findings)},
                              {"ranks", std::move(ranks)},
                              {"history", std::move(history)}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace coxswain
