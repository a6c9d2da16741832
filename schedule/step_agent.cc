#include "schedule/step_agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace coxswain::schedule {
namespace {

// The coordinator's own verdict on a stall, which names the ranks, comes first.
constexpr absl::Duration kTimeoutMargin = absl::Seconds(30);
constexpr int kWarnOnlyFactor = 10;

}  // namespace

absl::Duration StepTimeoutOf(const Terms& terms) {
  const int factor = terms.on_stall == OnStall::kWarn ? kWarnOnlyFactor : 1;
  return terms.progress_timeout * factor + kTimeoutMargin;
}

StepAgent::StepAgent(Options options) : options_(std::move(options)) {}

absl::Status StepAgent::Announce(const Ticket& ticket, absl::Time now) {
  if (announced()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "round ", round_, " of the stream '", options_.stream, "' (step ",
        ticket_->content.step, ") is not over: take its decision before step ",
        ticket.step, " is announced"));
  }
  if (!regroup_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the generation ended with round ", round_ - 1, " of the stream '",
        options_.stream, "' (", regroup_, "), so step ", ticket.step,
        " is one of the next: leave this session, or join again "
        "(Session::Rejoin) after a decision to regroup"));
  }
  const bool alone = options_.terms.enforcement == Enforcement::kOff;
  if (alone && !ticket.skip.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", ticket.step, " of the stream '", options_.stream,
        "' shall be skipped (", ticket.skip,
        "), which no other rank would receive: the plan has enforcement=off"));
  }
  ticket_ = Repeated<Ticket>{ticket, now};
  Ticket& content = ticket_->content;
  content.round = round_;
  content.stop = stop_;
  content.drain = drain_;
  content.checkpoint = checkpoint_;
  waiting_since_ = now;
  if (alone) decision_ = OwnDecision(ticket);
  return absl::OkStatus();
}

// Returns the decision of a rank that decides alone. All ranks make the same
// one, because their steps are the same.
Decision StepAgent::OwnDecision(const Ticket& ticket) const {
  Decision decision;
  decision.round = round_;
  const bool ends_window = !options_.terms.sync_each_batch ||
                           ticket.end_of_data ||
                           ticket.micro + 1 >= ticket.window;
  if (ends_window && options_.checkpoints) {
    decision.checkpoint =
        PlannedCheckpoint(options_.terms.checkpoint_every, ticket.step + 1);
  }
  return decision;
}

void StepAgent::RequestStop(std::string reason) {
  if (stop_.empty()) stop_ = std::move(reason);
}

void StepAgent::RequestDrain(std::string reason) {
  if (drain_.empty()) drain_ = std::move(reason);
}

void StepAgent::RequestCheckpoint(std::string reason) {
  if (checkpoint_.empty()) checkpoint_ = std::move(reason);
}

absl::Status StepAgent::Follow(const Terms& terms) {
  if (announced()) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", round_, " of the stream '", options_.stream,
                     "' is not over: its terms cannot change"));
  }
  Adopt(terms);
  return absl::OkStatus();
}

void StepAgent::Adopt(const Terms& terms) {
  options_.terms = terms;
  options_.timeout = StepTimeoutOf(terms);
}

absl::Status StepAgent::Vote(const schedule::Vote& vote, absl::Time now) {
  if (!announced() || voted_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a vote in the stream '", options_.stream, "', where round ", round_,
        voted_ ? " has this rank's vote already" : " is not announced yet"));
  }
  voted_ = true;
  waiting_since_ = now;
  if (options_.terms.enforcement == Enforcement::kOff && !vote.commit) {
    // As without any gate: the program must ask for it on all ranks.
    decision_->commit = false;
    decision_->reason = vote.reason;
    decision_->checkpoint.clear();
  }
  if (options_.terms.commit_vote) {
    vote_ = Repeated<schedule::Vote>{vote, now};
    vote_->content.round = round_;
    vote_->content.stop = stop_;
  }
  return absl::OkStatus();
}

void StepAgent::OnGrant(int64_t round) {
  if (announced() && round == round_) granted_ = true;
}

void StepAgent::OnDecision(const Decision& decision) {
  if (announced() && !decided() && decision.round == round_) {
    decision_ = decision;
  }
}

void StepAgent::OnConnected() {
  if (ticket_.has_value()) ticket_->due = absl::InfinitePast();
  if (vote_.has_value()) vote_->due = absl::InfinitePast();
}

void StepAgent::OnOtherCoordinator(absl::Time now) {
  if (announced() && !decided()) waiting_since_ = now;
}

std::optional<Decision> StepAgent::last_decision() const {
  if (options_.terms.enforcement == Enforcement::kOff) return std::nullopt;
  return decided() ? decision_ : taken_;
}

std::vector<StepAgent::Outgoing> StepAgent::Take(absl::Time now) {
  std::vector<Outgoing> result;
  if (!announced() || decided()) return result;
  if (ticket_->due <= now) {
    result.push_back(ticket_->content);
    ticket_->due = now + options_.resend;
  }
  if (vote_.has_value() && vote_->due <= now) {
    result.push_back(vote_->content);
    vote_->due = now + options_.resend;
  }
  return result;
}

absl::Time StepAgent::due() const {
  if (!announced() || decided()) return absl::InfiniteFuture();
  if (!vote_.has_value()) return ticket_->due;
  return std::min(ticket_->due, vote_->due);
}

absl::Time StepAgent::deadline() const {
  if (!announced() || decided()) return absl::InfiniteFuture();
  return std::min(due(), waiting_since_ + options_.timeout);
}

bool StepAgent::granted() const {
  return announced() && (options_.terms.enforcement != Enforcement::kStrict ||
                         granted_ || decided());
}

bool StepAgent::Expired(absl::Time now) const {
  return announced() && !decided() && now - waiting_since_ >= options_.timeout;
}

Decision StepAgent::TakeDecision() {
  COXSWAIN_CHECK(decided());
  taken_ = last_decision();
  Decision decision = *std::move(decision_);
  decision_.reset();
  regroup_ = decision.regroup;
  if (!decision.checkpoint.empty()) checkpoint_.clear();
  ticket_.reset();
  vote_.reset();
  voted_ = false;
  granted_ = false;
  ++round_;
  if (decision.plan.has_value()) Adopt(decision.plan->terms);
  return decision;
}

}  // namespace coxswain::schedule
