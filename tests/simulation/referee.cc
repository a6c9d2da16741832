#include "tests/simulation/referee.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/types.pb.h"
#include "transport/error_detail.h"

namespace coxswain::simulation {
namespace {

std::vector<int> Outliers(const absl::Status& failure) {
  const v1::ErrorDetail detail = DetailOf(failure);
  const auto& outliers = detail.schedule_mismatch().odd_ranks();
  return {outliers.begin(), outliers.end()};
}

}  // namespace

Referee::Referee(const History& history)
    : history_(history), acted_(static_cast<size_t>(history.world_size), 0) {}

std::string Referee::Tag(const schedule::Decision& decision) {
  return absl::StrCat(kTag, decision.round, ", step ", decision.step, ", ",
                      decision.commit ? "commit" : "skip");
}

void Referee::Violate(absl::string_view what) {
  if (violation_.empty()) violation_ = std::string(what);
}

Referee::Received& Referee::ReceivedIn(int64_t round) {
  Received& received = received_[round];
  if (received.ticket_of.empty()) {
    received.ticket_of.resize(static_cast<size_t>(history_.world_size));
    received.vote_of.resize(static_cast<size_t>(history_.world_size));
  }
  return received;
}

void Referee::OnTicketReceived(int rank, const schedule::Ticket& ticket) {
  if (ticket.round + 1 < decided()) return;
  Received& received = ReceivedIn(ticket.round);
  if (!ticket.stop.empty()) received.stop = true;
  if (!ticket.drain.empty()) received.drain = true;
  if (!ticket.checkpoint.empty()) received.checkpoint = true;
  received.ends_window = ticket.end_of_data ||
                         ticket.micro + 1 >= ticket.window ||
                         !history_.plan.terms.sync_each_batch;
  if (received.ticket_of[static_cast<size_t>(rank)]) return;
  received.ticket_of[static_cast<size_t>(rank)] = true;
  ++received.tickets;
  if (!ticket.skip.empty()) received.skip = true;
}

void Referee::OnVoteReceived(int rank, const schedule::Vote& vote) {
  if (vote.round + 1 < decided()) return;
  Received& received = ReceivedIn(vote.round);
  if (!vote.stop.empty()) received.stop = true;
  if (received.vote_of[static_cast<size_t>(rank)]) return;
  received.vote_of[static_cast<size_t>(rank)] = true;
  ++received.votes;
  if (!vote.commit) received.skip = true;
}

void Referee::OnCrashed() {
  ++coordinator_;
  regroup_wanted_ = false;
  checkpoint_wanted_ = false;
  received_.clear();
}

void Referee::OnKept(int64_t round) {
  if (round < decided()) rounds_[static_cast<size_t>(round)].kept = true;
}

void Referee::OnReceived(int64_t round) {
  if (round < decided()) rounds_[static_cast<size_t>(round)].received = true;
}

bool Referee::IsForgotten(int64_t round) const {
  if (round < 0 || round + 1 != decided()) return false;
  const Decided& last = rounds_.back();
  return last.coordinator < coordinator_ && !last.received && !last.kept;
}

void Referee::CheckRegroup(const schedule::Decision& decision,
                           const Received& received) {
  const bool right = received.ends_window && decision.stop.empty() &&
                     (received.drain || regroup_wanted_);
  if (decision.regroup.empty() == right) {
    Violate(absl::StrCat("round ", decision.round,
                         right ? " is to end" : " is not to end",
                         " the generation, and the decision is otherwise"));
  }
  if (!decision.regroup.empty() && decision.plan.has_value()) {
    Violate("a plan begins after the end of the generation");
  }
  if (!rounds_.empty() && !rounds_.back().regroup.empty()) {
    Violate("a decision after the one that ended the generation");
  }
}

void Referee::CheckCheckpoint(const schedule::Decision& decision,
                              const schedule::Plan& plan,
                              const Received& received) {
  const int64_t every = plan.terms.checkpoint_every;
  const bool planned = every > 0 && (decision.step + 1) % every == 0;
  const bool right = received.ends_window && decision.commit &&
                     !decision.without_data &&
                     (planned || received.checkpoint || checkpoint_wanted_);
  if (decision.checkpoint.empty() == right) {
    Violate(absl::StrCat("round ", decision.round,
                         right ? " is to be saved" : " is not to be saved",
                         ", and the decision is otherwise"));
  }
  if (right) checkpoint_wanted_ = false;
}

void Referee::OnGranted(int64_t round) {
  if (round == decided() && ReceivedIn(round).tickets != history_.world_size) {
    Violate(absl::StrCat("round ", round, " was granted with ",
                         ReceivedIn(round).tickets, " tickets"));
  }
}

void Referee::OnDecided(const schedule::Decision& decision,
                        const schedule::Plan& plan) {
  const int64_t round = decision.round;
  if (IsForgotten(round)) {
    rounds_.pop_back();
    ++made_again_;
  }
  if (round != decided()) {
    Violate(absl::StrCat("round ", round, " was decided after ", decided(),
                         " rounds"));
    return;
  }
  if (!failure_.ok()) Violate("a decision after the failure");
  const Received& received = ReceivedIn(round);
  if (received.tickets != history_.world_size) {
    Violate(absl::StrCat("round ", round, " was decided with ",
                         received.tickets, " tickets"));
  }
  if (plan.terms.commit_vote && received.votes != history_.world_size) {
    Violate(absl::StrCat("round ", round, " was decided with ", received.votes,
                         " votes"));
  }
  if (decision.commit == received.skip) {
    Violate(absl::StrCat("round ", round, received.skip ? " is" : " is not",
                         " to be skipped, and the decision is otherwise"));
  }
  if (decision.stop.empty() == received.stop) {
    Violate(absl::StrCat("round ", round, received.stop ? " is" : " is not",
                         " the last, and the decision is otherwise"));
  }
  CheckRegroup(decision, received);
  CheckCheckpoint(decision, plan, received);
  if (decision.plan.has_value() &&
      decision.plan->version == decision.plan_version) {
    Violate(absl::StrCat("round ", round, " of plan ", decision.plan_version,
                         " brings plan ", decision.plan->version));
  }
  Decided& decided = rounds_.emplace_back();
  decided.commit = decision.commit;
  decided.tag = Tag(decision);
  decided.stop = decision.stop;
  decided.plan_version = decision.plan.has_value() ? decision.plan->version : 0;
  decided.regroup = decision.regroup;
  decided.checkpoint = decision.checkpoint;
  decided.coordinator = coordinator_;
  received_.erase(round - 1);
}

void Referee::OnFailed(const absl::Status& failure) {
  if (!failure_.ok()) {
    Violate("a second failure");
    return;
  }
  failure_ = failure;
  if (deviated_.empty()) {
    Violate(absl::StrCat("all ranks are honest, and it failed: ",
                         failure.message()));
  }
}

void Referee::OnWarned(absl::string_view text) {
  ++warnings_;
  if (deviated_.empty()) {
    Violate(absl::StrCat("all ranks are honest, and it warned: ", text));
  }
}

void Referee::OnAnnounced(int rank, int64_t round, int64_t step,
                          const schedule::Plan& plan) {
  if (round != acted_[static_cast<size_t>(rank)]) {
    Violate(absl::StrCat("rank ", rank, " announced round ", round, " after ",
                         acted_[static_cast<size_t>(rank)], " rounds"));
  }
  const auto [found, first] = plan_of_step_.emplace(step, plan.version);
  if (!first && found->second != plan.version) {
    Violate(absl::StrCat("rank ", rank, " makes step ", step, " by plan ",
                         plan.version, ", another rank by plan ",
                         found->second));
  }
}

void Referee::OnExchangeBegins(int rank, int64_t round,
                               const schedule::Plan& plan) {
  if (plan.terms.enforcement != schedule::Enforcement::kStrict ||
      round < decided()) {
    return;
  }
  // The tickets of an earlier coordinator no longer count.
  if (coordinator_ > 0) return;
  if (ReceivedIn(round).tickets != history_.world_size) {
    Violate(absl::StrCat("rank ", rank, " began the exchange of round ", round,
                         " when ", ReceivedIn(round).tickets,
                         " tickets were there"));
  }
}

void Referee::OnActed(int rank, int64_t round, int64_t step,
                      const schedule::Decision& decision) {
  int64_t& acted = acted_[static_cast<size_t>(rank)];
  if (round != acted) {
    Violate(absl::StrCat("rank ", rank, " acted on round ", round, " after ",
                         acted, " rounds"));
  }
  ++acted;
  if (round >= decided()) {
    Violate(absl::StrCat("rank ", rank, " acted on round ", round,
                         ", which is not decided"));
    return;
  }
  const Decided& right = rounds_[static_cast<size_t>(round)];
  const int64_t version =
      decision.plan.has_value() ? decision.plan->version : 0;
  if (decision.reason != right.tag || decision.commit != right.commit ||
      decision.stop != right.stop || version != right.plan_version ||
      decision.regroup != right.regroup ||
      decision.checkpoint != right.checkpoint) {
    Violate(absl::StrCat("rank ", rank, " acted in round ", round, " on \"",
                         decision.reason, "\" with plan ", version,
                         ", decided was \"", right.tag, "\" with plan ",
                         right.plan_version));
  }
  if (!absl::StrContains(right.tag, absl::StrCat(", step ", step, ","))) {
    Violate(absl::StrCat("rank ", rank, " acted on \"", right.tag,
                         "\" in its step ", step));
  }
}

void Referee::OnWaited(int rank, absl::Duration waited, absl::Duration limit) {
  if (waited > limit) {
    Violate(absl::StrCat("rank ", rank, " waited for ",
                         absl::FormatDuration(waited), ", longer than ",
                         absl::FormatDuration(limit)));
  }
}

void Referee::OnTimeout(int rank) {
  if (deviated_.empty() ||
      history_.plan.terms.on_stall == schedule::OnStall::kAbort) {
    Violate(absl::StrCat("rank ", rank, " waited past its timeout"));
  }
}

void Referee::OnLeft(int rank) {
  if (deviated_.empty() && acted_[static_cast<size_t>(rank)] != decided()) {
    Violate(absl::StrCat("rank ", rank, " has left after ",
                         acted_[static_cast<size_t>(rank)], " of ", decided(),
                         " rounds"));
  }
}

bool Referee::Silent() const {
  return history_.deviation == Deviation::kSilent ||
         history_.deviation == Deviation::kNoVote;
}

bool Referee::MustFail() const {
  if (Silent() && history_.plan.terms.on_stall == schedule::OnStall::kWarn)
    return false;
  // The second ticket may come when the round is long over.
  return history_.deviation != Deviation::kTwoTickets;
}

// The outliers are those that deviated. Of two ranks either may be the one:
// then both may be named. Of several deviants the ticket of one may not have
// arrived yet.
void Referee::CheckFailureNames() {
  const std::vector<int> outliers = Outliers(failure_);
  const std::set<int> named(outliers.begin(), outliers.end());
  const std::set<int> right(deviated_.begin(), deviated_.end());
  std::vector<int> both;
  std::set_intersection(named.begin(), named.end(), right.begin(), right.end(),
                        std::back_inserter(both));
  const bool complete =
      !absl::StrContains(failure_.message(), "nothing came from") &&
      !absl::StrContains(failure_.message(), "did not come back");
  const bool majority =
      static_cast<int>(right.size()) * 2 < history_.AlikeWithDeviants();
  bool held = !both.empty();
  if (complete) held = both.size() == right.size();
  if (complete && majority) held = named == right;
  if (held) return;
  Violate(absl::StrCat("ranks ", absl::StrJoin(deviated_, ","),
                       " deviated, and named are ",
                       absl::StrJoin(outliers, ","), ": ", failure_.message()));
}

void Referee::OnEnd(const Ending& ending) {
  if (ending.at_gate > 0) {
    Violate(absl::StrCat(ending.at_gate, " ranks wait for ever"));
  }
  if (!failure_.ok()) {
    CheckFailureNames();
  } else if (deviated_.empty()) {
    if (ending.left == history_.world_size) return;
    Violate(absl::StrCat("only ", ending.left, " ranks have left"));
  } else if (MustFail()) {
    Violate(absl::StrCat("ranks ", absl::StrJoin(deviated_, ","),
                         " deviated, and it did not fail"));
  } else if (history_.plan.terms.on_stall == schedule::OnStall::kWarn &&
             Silent() && warnings_ == 0) {
    Violate("a rank was silent, and no warning was given");
  }
}

}  // namespace coxswain::simulation
