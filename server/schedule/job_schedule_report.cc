// What a schedule reports: to the search for stalls, and for display.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/types.pb.h"
#include "schedule/schedule_errors.h"
#include "schedule/stall.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"
#include "server/schedule/job_schedule.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

// Returns the ranks that the error of a failed schedule names.
std::set<int> OutliersOf(const absl::Status& status) {
  const v1::ErrorDetail detail = DetailOf(status);
  const auto& ranks = detail.schedule_mismatch().odd_ranks();
  return {ranks.begin(), ranks.end()};
}

}  // namespace

schedule::RankActivity JobSchedule::ActivityOf(size_t rank,
                                               const MemberDescription* member,
                                               absl::Time now) const {
  const Rank& known = ranks_[rank];
  schedule::RankActivity activity;
  activity.live = !known.left;
  activity.progressed = known.progressed;
  activity.last_contact = known.last_contact;
  if (known.stream != nullptr) {
    const auto& last = known.stream->agreement.last_tickets()[rank];
    if (last.has_value()) {
      activity.ticket = {known.stream->name, last->ticket.round,
                         last->ticket.step,  last->at,
                         last->decided,      last->inferred};
    }
  }
  if (member == nullptr) return activity;
  const Progress& progress = member->progress;
  activity.step = progress.step;
  activity.collective_sequence = progress.collective_sequence;
  activity.micro_batches = progress.micro_batches;
  activity.rounds = progress.rounds;
  activity.bucket = progress.bucket;
  activity.activity = progress.activity;
  activity.progressed = std::max(known.progressed, now - member->idle);
  activity.last_contact = std::max(known.last_contact, now - member->silence);
  return activity;
}

schedule::StallInput JobSchedule::InputOf(
    const std::vector<MemberDescription>& members, absl::Time now) const {
  schedule::StallInput input;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    input.ranks.push_back(ActivityOf(
        rank, rank < members.size() ? &members[rank] : nullptr, now));
  }
  for (const auto& [name, stream] : streams_) {
    const schedule::StepAgreement& agreement = stream.agreement;
    if (stream.stopped) input.stopped = true;
    schedule::OpenRound open;
    open.missing = agreement.Missing();
    if (open.missing.empty()) continue;
    open.stream = name;
    open.round = agreement.round();
    for (const auto& last : agreement.last_tickets()) {
      if (!last.has_value() || last->ticket.round != open.round) continue;
      open.step = last->ticket.step;
      break;
    }
    open.voting = agreement.voting();
    open.since = agreement.timeout_start();
    input.rounds.push_back(std::move(open));
  }
  input.progress_timeout = plan().terms.progress_timeout;
  input.looked_since = restarted_;
  input.pipeline = Explain(members);
  if (begin_.mesh.empty()) return input;
  input.place_of = [&members](int rank) {
    const auto index = static_cast<size_t>(rank);
    return index < members.size() ? members[index].member.Place() : "";
  };
  return input;
}

std::string JobSchedule::ResumedText() const {
  std::vector<std::string> parts;
  for (const auto& [name, stream] : streams_) {
    parts.push_back(absl::StrCat("stream \"", name, "\" is at round ",
                                 stream.agreement.round()));
  }
  const std::vector<int> absent = Absent();
  if (!absent.empty()) {
    parts.push_back(
        absl::StrCat(schedule::RankList(absent), " did not come back yet"));
  }
  const std::string what =
      resumed_->epoch.fallback > 0
          ? absl::StrCat(
                "the ranks went on without a coordinator: resumed "
                "after fallback epoch ",
                resumed_->epoch.fallback)
          : absl::StrCat("the coordinator was restarted: resumed from term ",
                         resumed_->epoch.term);
  return absl::StrCat(what, parts.empty() ? "" : "; ",
                      absl::StrJoin(parts, ", "));
}

void JobSchedule::End(const std::vector<MemberDescription>& members,
                      const absl::Status& reason, absl::Time now) {
  if (ended()) return;
  ScheduleReport report = Report(members, now);
  const bool outliers =
      std::any_of(report.ranks.begin(), report.ranks.end(),
                  [](const RankReport& rank) { return rank.outlier; });
  // For a job that has ended, findings without an outlier are left out.
  if (!outliers) report.findings.clear();
  if (failure_.ok() || report.findings.empty()) {
    report.findings.insert(report.findings.begin(),
                           std::string(reason.message()));
  }
  end_ = std::move(report);
  // It is kept for long: without what is not read any more.
  for (Rank& rank : ranks_) rank.stream = nullptr;
  streams_.clear();
  history_ = {};
  changes_ = {};
  schedules_.reset();
}

std::optional<RankWait> JobSchedule::WaitOf(
    const std::vector<MemberDescription>& members, absl::Time now) const {
  if (over()) return std::nullopt;
  const schedule::StallReport stall =
      schedule::FindStall(now, InputOf(members, now));
  const absl::Duration waited = now - stall.since;
  if (waited < schedule::kWorthReporting) return std::nullopt;
  return RankWait{stall.outliers, stall.since, waited, stall.findings.front()};
}

ScheduleReport JobSchedule::Report(
    const std::vector<MemberDescription>& members, absl::Time now) const {
  if (ended()) return *end_;
  const schedule::StallInput input = InputOf(members, now);
  schedule::StallReport stall = schedule::FindStall(now, input);
  std::set<int> outliers(stall.outliers.begin(), stall.outliers.end());
  ScheduleReport report;
  report.at = now;
  report.findings = std::move(stall.findings);
  if (!failure_.ok()) {
    outliers = OutliersOf(failure_);
    report.findings.insert(report.findings.begin(),
                           std::string(failure_.message()));
  }
  if (resumed_.has_value()) report.findings.push_back(ResumedText());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RankReport rank;
    if (i < members.size()) rank.member = members[i];
    rank.member.member.rank = static_cast<int>(i);
    rank.outlier = outliers.count(static_cast<int>(i)) != 0;
    rank.ticket = input.ranks[i].ticket;
    if (rank.ticket.has_value() && rank.ticket->inferred) rank.ticket.reset();
    rank.idle = now - input.ranks[i].progressed;
    if (input.pipeline.has_value() && i < input.pipeline->in.size()) {
      rank.in = input.pipeline->in[i];
      rank.waits_for = input.pipeline->waits_for[i];
    }
    if (rank.ticket.has_value()) {
      const schedule::Ticket& ticket =
          ranks_[i].stream->agreement.last_tickets()[i]->ticket;
      rank.micro_batches_in_window = ticket.micro_batches;
      rank.window = ticket.window;
    }
    report.ranks.push_back(std::move(rank));
  }
  report.history.assign(history_.begin(), history_.end());
  return report;
}

}  // namespace coxswain::server
