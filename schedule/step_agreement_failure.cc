// How a StepAgreement fails, and its messages.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/peer_text.h"
#include "schedule/schedule_errors.h"
#include "schedule/step_agreement.h"

namespace coxswain::schedule {
namespace {

// Less than what trailing metadata may hold.
constexpr size_t kMaxSentenceBytes = 3072;
// Ranks whose places in the mesh are named.
constexpr size_t kMaxPlaces = 4;

}  // namespace

void StepAgreement::CheckStall(absl::Time now, Messages* messages) {
  const Terms& terms = options_.plan.terms;
  if (now_.warned || now < timeout_start() + terms.progress_timeout) return;
  TicketDiff diff;
  diff.step = step();
  diff.outliers = Missing();
  diff.lines = {MissingText(diff.outliers, now)};
  diff.advice =
      "a rank that hangs outside of an exchange, or that has ended its loop";
  if (terms.on_stall == OnStall::kAbort) {
    Fail(diff);
    return;
  }
  now_.warned = true;
  Message warning;
  warning.kind = Message::Kind::kWarning;
  warning.rank = Message::kAllRanks;
  warning.round = round_;
  warning.text = Sentence(diff);
  messages->push_back(std::move(warning));
}

std::string StepAgreement::MissingText(const std::vector<int>& missing,
                                       absl::Time now) const {
  return absl::StrCat(RankList(missing),
                      voting() ? " did not vote on it" : " did not announce it",
                      " within ", Rounded(now - waiting_since()),
                      " of the first to do so: ", LastTickets(missing));
}

// Returns where each of them was at its last ticket.
std::string StepAgreement::LastTickets(const std::vector<int>& ranks) const {
  std::map<std::optional<int64_t>, std::vector<int>> ranks_at;
  for (int rank : ranks) {
    const std::optional<LastTicket>& last =
        last_tickets_[static_cast<size_t>(rank)];
    const bool known = last.has_value() && !last->inferred;
    ranks_at[known ? std::optional<int64_t>(last->ticket.step) : std::nullopt]
        .push_back(rank);
  }
  std::vector<std::string> parts;
  for (const auto& [step, of_step] : ranks_at) {
    parts.push_back(absl::StrCat(
        ranks_at.size() == 1 ? "" : absl::StrCat(RankList(of_step), ": "),
        step.has_value()   ? absl::StrCat("the last ticket was of step ", *step)
        : options_.resumed ? "no ticket came since the coordinator was "
                             "restarted"
                           : "no ticket was received"));
  }
  return absl::StrJoin(parts, ", ");
}

// The tickets differ, or a rank has left.
void StepAgreement::FailRound() {
  std::vector<RankTicket> tickets;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (!HasTicket(rank)) continue;
    tickets.push_back(
        {rank, &last_tickets_[static_cast<size_t>(rank)]->ticket});
  }
  TicketDiff diff = DiffTickets(Rules(), tickets);
  // No rank votes on tickets that differ.
  const bool votes = voting() && diff.lines.empty();
  std::vector<int> present;
  std::vector<int> leavers;
  std::vector<int> silent;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (votes ? HasVote(rank) : HasTicket(rank)) {
      present.push_back(rank);
    } else {
      (left_[static_cast<size_t>(rank)] ? leavers : silent).push_back(rank);
    }
  }
  if (tickets.empty()) diff.step = step();
  if (!leavers.empty()) AddLeavers(leavers, present, &diff);
  if (!silent.empty()) {
    diff.lines.push_back(
        votes ? absl::StrCat(RankList(silent), " did not vote on it")
              : absl::StrCat("nothing came from ", RankList(silent),
                             " in this step"));
  }
  Fail(diff);
}

void StepAgreement::AddLeavers(const std::vector<int>& leavers,
                               const std::vector<int>& present,
                               TicketDiff* diff) const {
  diff->lines.push_back(
      stopped_ ? absl::StrCat(RankList(present),
                              " went on although the decision was to stop")
               : absl::StrCat(RankList(leavers), " left the job (",
                              LastTickets(leavers), ") while ",
                              RankList(present), " went on"));
  const std::vector<int>& outliers = stopped_ ? present : leavers;
  std::set<int> all(diff->outliers.begin(), diff->outliers.end());
  all.insert(outliers.begin(), outliers.end());
  diff->outliers.assign(all.begin(), all.end());
  if (!diff->advice.empty()) return;
  diff->advice =
      stopped_ ? "a loop that ignores the decision to stop"
               : "loops of different lengths; uneven_data=wait_for_all or "
                 "end_at_first lets ranks have different amounts of data";
}

void StepAgreement::FailRank(int rank, absl::string_view what,
                             absl::string_view look_for) {
  TicketDiff diff;
  diff.step = step();
  diff.outliers = {rank};
  diff.lines = {absl::StrCat("rank ", rank, " ", what)};
  diff.advice = std::string(look_for);
  Fail(diff);
}

void StepAgreement::Fail(const TicketDiff& diff) {
  ScheduleMismatch mismatch;
  mismatch.stream = options_.stream;
  mismatch.round = round_;
  mismatch.outliers = diff.outliers;
  mismatch.differences = diff.lines;
  failure_ = ScheduleMismatchError(Sentence(diff), mismatch);
}

std::string StepAgreement::Sentence(const TicketDiff& diff) const {
  std::vector<int> unplaced;
  std::set_difference(diff.outliers.begin(), diff.outliers.end(),
                      diff.placed.begin(), diff.placed.end(),
                      std::back_inserter(unplaced));
  return absl::StrCat(
      "step ", diff.step, " of stream \"", options_.stream,
      "\": ", diff.opening,
      Shorten(absl::StrJoin(diff.lines, "; "), kMaxSentenceBytes),
      PlacesOf(unplaced), "; look for ", diff.advice);
}

std::string StepAgreement::PlacesOf(const std::vector<int>& ranks) const {
  std::string text;
  if (options_.mesh.empty()) return text;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxPlaces); ++i) {
    absl::StrAppend(&text, i == 0 ? " (" : "; ", "rank ", ranks[i], " is ",
                    options_.mesh.Describe(ranks[i]));
  }
  if (!text.empty()) absl::StrAppend(&text, ")");
  return text;
}

}  // namespace coxswain::schedule
