#include "schedule/stall.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "schedule/schedule_errors.h"

namespace coxswain::schedule {
namespace {

constexpr size_t kMaxFindings = 20;
constexpr size_t kMaxInError = 4;
constexpr size_t kMaxShownGroups = 6;  // values that one sentence names
// Ranks of pipelines that a report names.
constexpr size_t kMaxHolders = 4;
// The others of a pipeline wait for a rank for some passes in each step.
constexpr int kUsualPasses = 4;
// A missing ticket has no meaning for so long.
constexpr absl::Duration kUsual = absl::Seconds(1);

using Ranks = std::vector<int>;

class Search {
 public:
  Search(absl::Time now, const StallInput& input) : now_(now), input_(input) {
    for (size_t i = 0; i < input.ranks.size(); ++i) {
      if (input.ranks[i].live) live_.push_back(static_cast<int>(i));
    }
  }

  StallReport Run() {
    const bool held = NameHolders();
    NameMissing(held);
    const bool idle = !held && NameIdle();
    NameSilent();
    StallReport report;
    report.stalled = overdue_ || idle;
    report.since = since_;
    report.outliers.assign(outliers_.begin(), outliers_.end());
    if (findings_.empty()) findings_.push_back(Calm());
    if (findings_.size() > kMaxFindings) findings_.resize(kMaxFindings);
    report.findings = std::move(findings_);
    if (report.stalled) report.error = Error(report);
    return report;
  }

 private:
  // "rank 3", or "rank 3 (dp 1, shard 1; host-b/1)".
  std::string Named(int rank) const {
    const std::string place = input_.place_of ? input_.place_of(rank) : "";
    return absl::StrCat("rank ", rank,
                        place.empty() ? "" : absl::StrCat(" (", place, ")"));
  }
  // "rank 3 does", "ranks 3, 4 do".
  std::string With(const Ranks& ranks, absl::string_view one,
                   absl::string_view many) const {
    return ranks.size() == 1 ? absl::StrCat(Named(ranks[0]), " ", one)
                             : absl::StrCat(RankList(ranks), " ", many);
  }

  const RankActivity& Rank(int rank) const {
    return input_.ranks[static_cast<size_t>(rank)];
  }

  // Ranks that the others of their pipelines wait for, and for long. Returns
  // whether there are some.
  bool NameHolders() {
    if (!input_.pipeline.has_value()) return false;
    size_t named = 0;
    for (const pipeline::Holder& holder : input_.pipeline->holders) {
      const absl::Duration since =
          std::min(holder.since, now_ - input_.looked_since);
      const bool late = since >= input_.progress_timeout;
      const absl::Duration usual =
          std::max(kWorthReporting, kUsualPasses * holder.median);
      if (!late && since < usual) continue;
      if (late) overdue_ = true;
      since_ = std::min(since_, now_ - since);
      outliers_.insert(holder.rank);
      if (++named <= kMaxHolders) findings_.push_back(holder.sentence);
    }
    return named > 0;
  }

  // Whether these ranks are all within a step of their pipelines, which ends
  // once those that hold it up have moved.
  bool InPipeline(const Ranks& ranks) const {
    return std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
      const auto& in = input_.pipeline->in;
      const auto index = static_cast<size_t>(rank);
      return index < in.size() && !in[index].empty() &&
             in[index] != pipeline::kBetweenSteps;
    });
  }

  // Ranks that the others wait for in a round.
  void NameMissing(bool held) {
    std::vector<const OpenRound*> rounds;
    for (const OpenRound& round : input_.rounds) {
      if (round.missing.empty()) continue;
      if (held && InPipeline(round.missing)) continue;
      rounds.push_back(&round);
    }
    std::stable_sort(rounds.begin(), rounds.end(),
                     [](const OpenRound* a, const OpenRound* b) {
                       return a->since < b->since;
                     });
    for (const OpenRound* round : rounds) {
      const absl::Duration waited = now_ - round->since;
      const bool late = waited >= input_.progress_timeout;
      if (!late && waited < kUsual) continue;
      if (late) overdue_ = true;
      if (open_ == nullptr) {
        open_ = round;
        since_ = std::min(since_, round->since);
      }
      outliers_.insert(round->missing.begin(), round->missing.end());
      findings_.push_back(
          absl::StrCat("step ", round->step, " of stream \"", round->stream,
                       "\": ", With(round->missing, "has not ", "have not "),
                       round->voting ? "voted on it" : "announced it",
                       "; the others have waited for ", Rounded(waited)));
      for (int rank : round->missing) Explain(rank);
    }
  }

  // Adds what a missing rank does instead, if it is known.
  void Explain(int rank) {
    if (rank < 0 || static_cast<size_t>(rank) >= input_.ranks.size()) return;
    if (findings_.size() >= kMaxFindings) return;
    const RankActivity& it = Rank(rank);
    if (!it.live) {
      findings_.push_back(absl::StrCat(Named(rank), " has left the job"));
      return;
    }
    findings_.push_back(absl::StrCat(
        Named(rank), ": ", LastTicketText(it), "; ", it.micro_batches,
        " micro-batches begun, last progress ", Ago(it.progressed),
        it.activity.empty() ? ""
                            : absl::StrCat("; it reports: ", it.activity)));
  }

  std::string Ago(absl::Time time) const {
    return absl::StrCat(Rounded(std::max(now_ - time, absl::ZeroDuration())),
                        " ago");
  }

  std::string LastTicketText(const RankActivity& it) const {
    if (!it.ticket.has_value()) return "it has sent no ticket";
    if (it.ticket->inferred) {
      return absl::StrCat("its last ticket, of round ", it.ticket->round,
                          " of stream \"", it.ticket->stream,
                          "\", arrived before the coordinator was restarted");
    }
    return absl::StrCat("its last ticket was of step ", it.ticket->step,
                        " of stream \"", it.ticket->stream, "\", ",
                        Ago(it.ticket->at));
  }

  // Returns whether any rank owes an exchange.
  bool Owed() const {
    if (live_.size() < input_.ranks.size()) return false;
    return std::any_of(live_.begin(), live_.end(), [this](int rank) {
      return Rank(rank).ticket.has_value();
    });
  }

  // No rank makes progress, although no ticket is missing: an exchange does
  // not end, or all ranks hang outside of one.
  bool NameIdle() {
    if (open_ != nullptr || live_.empty() || !Owed()) return false;
    absl::Time last = absl::InfinitePast();
    for (int rank : live_) last = std::max(last, Rank(rank).progressed);
    const bool stalled = now_ - last >= input_.progress_timeout;
    if (now_ - last < kWorthReporting && !stalled) return false;
    const std::string headline = absl::StrCat(
        "no rank has made progress for ", Rounded(now_ - last),
        AllDecided() ? ", and all had agreed on their last exchange: it does "
                       "not end, or they hang after it"
                     : "");
    findings_.push_back(headline);
    if (!NameBehind()) {
      // After a stop they may well do nothing, if all got there.
      if (input_.stopped) {
        findings_.pop_back();
        return false;
      }
      if (stalled) outliers_.insert(live_.begin(), live_.end());
      findings_.push_back(absl::StrCat("all ranks are at the same point: ",
                                       Rank(live_[0]).collective_sequence,
                                       " collectives started, bucket ",
                                       Rank(live_[0]).bucket));
    }
    since_ = last;
    for (int rank : outliers_) Explain(rank);
    return stalled;
  }

  bool AllDecided() const {
    return std::all_of(live_.begin(), live_.end(), [this](int rank) {
      return Rank(rank).ticket.has_value() && Rank(rank).ticket->decided;
    });
  }

  // Outliers are those that differ from the majority; else those that are
  // behind.
  template <typename Number>
  bool NameGroups(absl::string_view noun, absl::string_view verb,
                  Number RankActivity::*field) {
    std::map<int64_t, Ranks> groups;
    for (int rank : live_) groups[Rank(rank).*field].push_back(rank);
    if (groups.size() < 2) return false;
    const Ranks* right = &groups.rbegin()->second;
    for (const auto& [value, ranks] : groups) {
      if (ranks.size() * 2 > live_.size()) right = &ranks;
    }
    std::vector<std::string> parts;
    for (const auto& [value, ranks] : groups) {
      if (&ranks != right) outliers_.insert(ranks.begin(), ranks.end());
      if (parts.size() >= kMaxShownGroups) continue;
      parts.push_back(absl::StrCat(value, " on ", RankList(ranks)));
    }
    if (groups.size() > parts.size()) {
      parts.push_back(
          absl::StrCat("and ", groups.size() - parts.size(), " other values"));
    }
    findings_.push_back(
        absl::StrCat(noun, " ", verb, ": ", absl::StrJoin(parts, ", ")));
    return true;
  }

  bool NameBehind() {
    return NameGroups("tickets", "sent", &RankActivity::rounds) ||
           NameGroups("collectives", "started",
                      &RankActivity::collective_sequence) ||
           NameGroups("bucket", "launched last", &RankActivity::bucket);
  }

  // Leases handle silence; here it only explains the rest.
  void NameSilent() {
    Ranks silent;
    absl::Time last = absl::InfinitePast();
    for (int rank : live_) {
      if (now_ - Rank(rank).last_contact < kWorthReporting) continue;
      silent.push_back(rank);
      last = std::max(last, Rank(rank).last_contact);
    }
    if (silent.empty()) return;
    findings_.push_back(absl::StrCat(
        With(silent, "has sent nothing for ", "have sent nothing for "),
        Rounded(now_ - last)));
  }

  std::string Calm() const {
    if (input_.stopped) return "all ranks were asked to stop; no rank waits";
    if (live_.empty()) return "all ranks have left";
    if (!Owed()) return "no exchange is under way; no rank waits";
    return "the job makes progress; no rank waits";
  }

  absl::Status Error(const StallReport& report) const {
    ScheduleMismatch mismatch;
    if (open_ != nullptr) {
      mismatch.stream = open_->stream;
      mismatch.round = open_->round;
    } else {
      for (int rank : live_) {
        const auto& ticket = Rank(rank).ticket;
        if (!ticket.has_value()) continue;
        mismatch.stream = ticket->stream;
        mismatch.round = std::max(mismatch.round, ticket->round);
      }
    }
    mismatch.outliers = report.outliers;
    mismatch.differences = report.findings;
    const size_t count = std::min(report.findings.size(), kMaxInError);
    const std::vector<std::string> first(
        report.findings.begin(),
        report.findings.begin() + static_cast<std::ptrdiff_t>(count));
    return ScheduleMismatchError(
        absl::StrCat("the job is stalled: ", absl::StrJoin(first, "; "),
                     "; look at ", RankList(report.outliers)),
        mismatch);
  }

  const absl::Time now_;
  const StallInput& input_;
  Ranks live_;
  const OpenRound* open_ = nullptr;  // the one that waits longest
  bool overdue_ = false;
  absl::Time since_ = absl::InfiniteFuture();
  std::set<int> outliers_;
  std::vector<std::string> findings_;
};

}  // namespace

StallReport FindStall(absl::Time now, const StallInput& input) {
  return Search(now, input).Run();
}

}  // namespace coxswain::schedule
