#include "schedule/step_agreement.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "schedule/bounds.h"
#include "schedule/schedule_errors.h"

namespace coxswain::schedule {
namespace {

// How many different reasons one decision repeats.
constexpr size_t kMaxReasons = 4;

// Returns what ranks ask for as one text: "ranks 1, 2: loss is nan; rank 5:
// ...".
class Requests {
 public:
  void Add(int rank, const std::string& reason) {
    std::vector<int>& ranks = ranks_of_[reason];
    if (ranks.empty()) order_.push_back(reason);
    if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
  }
  bool empty() const { return order_.empty(); }

  std::string Text() const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < std::min(order_.size(), kMaxReasons); ++i) {
      const std::string& reason = order_[i];
      parts.push_back(
          absl::StrCat(RankList(ranks_of_.at(reason)), ": ", reason));
    }
    if (order_.size() > kMaxReasons) {
      parts.push_back(
          absl::StrCat(order_.size() - kMaxReasons, " other reasons"));
    }
    return absl::StrJoin(parts, "; ");
  }

 private:
  std::map<std::string, std::vector<int>> ranks_of_;
  std::vector<std::string> order_;
};

StepAgreement::Message To(StepAgreement::Message::Kind kind, int rank,
                          int64_t round) {
  StepAgreement::Message message;
  message.kind = kind;
  message.rank = rank;
  message.round = round;
  return message;
}

}  // namespace

StepAgreement::StepAgreement(Options options)
    : options_(std::move(options)),
      classes_(options_.mesh, options_.world_size),
      last_tickets_(static_cast<size_t>(options_.world_size)),
      last_votes_(static_cast<size_t>(options_.world_size)),
      left_(static_cast<size_t>(options_.world_size), false),
      absent_(static_cast<size_t>(options_.world_size), false),
      positioned_(static_cast<size_t>(options_.world_size), !options_.resumed) {
  COXSWAIN_CHECK(options_.world_size > 0);
  for (int rank : options_.absent) absent_[static_cast<size_t>(rank)] = true;
  absent_count_ = static_cast<int>(options_.absent.size());
}

bool StepAgreement::HasTicket(int rank) const {
  const std::optional<LastTicket>& last =
      last_tickets_[static_cast<size_t>(rank)];
  return last.has_value() && last->ticket.round == round_;
}

bool StepAgreement::HasVote(int rank) const {
  const std::optional<Vote>& last = last_votes_[static_cast<size_t>(rank)];
  return last.has_value() && last->round == round_;
}

bool StepAgreement::strict() const {
  return options_.plan.terms.enforcement == Enforcement::kStrict;
}

TicketRules StepAgreement::Rules() const {
  TicketRules rules;
  rules.plan = &options_.plan;
  rules.classes = &classes_;
  rules.carried_windows =
      now_.adopted_plan && options_.plan.terms.tail == TailPolicy::kCarry;
  rules.next_step = next_step_;
  return rules;
}

int64_t StepAgreement::step() const {
  if (now_.tickets == 0) return next_step_.value_or(0);
  return last_tickets_[static_cast<size_t>(now_.first_rank)]->ticket.step;
}

StepAgreement::Messages StepAgreement::OnTicket(int rank, const Ticket& ticket,
                                                absl::Time now) {
  COXSWAIN_CHECK(rank >= 0 && rank < options_.world_size);
  Messages messages;
  if (!failure_.ok()) return messages;
  OnBack(rank, now);
  Ticket cut = ticket;
  CutTexts(&cut);
  if (ticket.round > round_ && AwaitsPosition(rank)) {
    pending_[rank].ticket = std::move(cut);
    return messages;
  }
  positioned_[static_cast<size_t>(rank)] = true;
  if (regrouped() && ticket.round >= round_) {
    FailRank(rank,
             absl::StrCat("has announced step ", ticket.step,
                          " although the generation ended with the step "
                          "before (",
                          regrouped_, ")"),
             "a loop that ignores a decision to regroup");
  } else if (ticket.round > round_) {
    FailRank(rank, absl::StrCat("has announced round ", ticket.round,
                                " before round ", round_, " was decided"));
  } else if (ticket.round < round_ || HasTicket(rank)) {
    AnswerTicket(rank, cut, now, &messages);
  } else {
    Accept(rank, std::move(cut), now);
    Advance(now, &messages);
  }
  return messages;
}

void StepAgreement::Accept(int rank, Ticket ticket, absl::Time now) {
  if (now_.tickets == 0) {
    now_.first_rank = rank;
    now_.first_ticket = now;
    AdoptPlan(ticket.plan_version);
  }
  ++now_.tickets;
  now_.last_rank = rank;
  now_.last_ticket = now;
  LastTicket& last = last_tickets_[static_cast<size_t>(rank)].emplace();
  last.ticket = std::move(ticket);
  last.at = now;
  const RankTicket own{rank, &last.ticket};
  const TicketRules rules = Rules();
  bool right = TicketFits(rules, own);
  for (const int first : FirstsFor(rank)) {
    const RankTicket other{first,
                           &last_tickets_[static_cast<size_t>(first)]->ticket};
    right = right && TicketsAgree(rules, other, own);
  }
  if (!right) now_.trouble = std::min(now_.trouble, now);
}

std::vector<int> StepAgreement::FirstsFor(int rank) {
  std::vector<int> firsts = {now_.first_rank};
  if (!classes_.divided()) return firsts;
  const auto add = [&](Scope scope, std::vector<int>* first_of) {
    first_of->resize(static_cast<size_t>(classes_.ClassesOf(scope)), -1);
    int& first =
        (*first_of)[static_cast<size_t>(classes_.ClassOf(scope, rank))];
    if (first < 0) first = rank;
    firsts.push_back(first);
  };
  add(Scope::kData, &now_.first_of_data);
  add(Scope::kPart, &now_.first_of_part);
  return firsts;
}

void StepAgreement::NotePlan(const Plan& plan) {
  if (plan.version == options_.plan.version) return;
  noted_plans_.push_back(plan);
  if (noted_plans_.size() > kMaxNotedPlans) noted_plans_.pop_front();
}

void StepAgreement::AdoptPlan(int64_t version) {
  if (options_.undelivered.has_value() &&
      options_.undelivered->version == version) {
    options_.plan = *std::exchange(options_.undelivered, std::nullopt);
    now_.adopted_plan = true;
  }
  if (noted_plans_.empty()) return;
  // A stream that begins late may name none: it means the newest.
  if (version == 0 && round_ == 0) version = noted_plans_.back().version;
  const auto found =
      std::find_if(noted_plans_.begin(), noted_plans_.end(),
                   [&](const Plan& plan) { return plan.version == version; });
  if (found == noted_plans_.end()) return;
  options_.plan = std::move(*found);
  noted_plans_.erase(noted_plans_.begin(), found + 1);
  now_.adopted_plan = true;
}

void StepAgreement::AnswerTicket(int rank, const Ticket& ticket, absl::Time now,
                                 Messages* messages) {
  std::optional<LastTicket>& last = last_tickets_[static_cast<size_t>(rank)];
  if (last.has_value() && !last->inferred &&
      last->ticket.round == ticket.round) {
    if (!SameTicket(last->ticket, ticket)) {
      FailRank(rank, absl::StrCat("has announced two different things under "
                                  "round ",
                                  ticket.round));
      return;
    }
    if (last->ticket.stop.empty()) last->ticket.stop = ticket.stop;
  }
  if (ticket.round < round_) {
    // Of a round that was decided before the restart.
    if (!last.has_value() || last->ticket.round < ticket.round) {
      last = LastTicket{ticket, now, /*decided=*/true};
    }
    AnswerDecided(rank, ticket.round, messages);
  } else if (now_.granted) {
    messages->push_back(To(Message::Kind::kGrant, rank, round_));
  }
}

// Older rounds are not answered: no rank waits for them, the network has only
// delivered their tickets late.
void StepAgreement::AnswerDecided(int rank, int64_t round,
                                  Messages* messages) const {
  for (const Decided& decided : decided_) {
    if (decided.decision.round != round) continue;
    if (decided.granted) {
      messages->push_back(To(Message::Kind::kGrant, rank, round));
    }
    Message answer = To(Message::Kind::kDecision, rank, round);
    answer.decision = decided.decision;
    messages->push_back(std::move(answer));
  }
}

StepAgreement::Messages StepAgreement::OnVote(int rank, const Vote& vote,
                                              absl::Time now) {
  COXSWAIN_CHECK(rank >= 0 && rank < options_.world_size);
  Messages messages;
  if (!failure_.ok()) return messages;
  OnBack(rank, now);
  Vote cut = vote;
  CutTexts(&cut);
  if (vote.round > round_ && AwaitsPosition(rank)) {
    pending_[rank].vote = std::move(cut);
    return messages;
  }
  std::optional<Vote>& last = last_votes_[static_cast<size_t>(rank)];
  if (vote.round > round_) {
    FailRank(rank, absl::StrCat("has voted on round ", vote.round,
                                " before round ", round_, " was decided"));
  } else if (last.has_value() && last->round == vote.round &&
             !SameVote(*last, cut)) {
    FailRank(rank, absl::StrCat("has given two different votes on round ",
                                vote.round));
  } else if (vote.round < round_) {
    AnswerDecided(rank, vote.round, &messages);
  } else if (HasVote(rank)) {
    if (last->stop.empty()) last->stop = std::move(cut.stop);
  } else {
    last = std::move(cut);
    ++now_.votes;
    now_.first_vote = std::min(now_.first_vote, now);
    Advance(now, &messages);
  }
  return messages;
}

StepAgreement::Messages StepAgreement::OnMemberLeft(int rank, absl::Time now) {
  COXSWAIN_CHECK(rank >= 0 && rank < options_.world_size);
  Messages messages;
  if (!failure_.ok()) return messages;
  OnBack(rank, now);
  left_[static_cast<size_t>(rank)] = true;
  any_left_ = true;
  Advance(now, &messages);
  return messages;
}

StepAgreement::Messages StepAgreement::Tick(absl::Time now) {
  Messages messages;
  if (!failure_.ok() || now < deadline()) return messages;
  Advance(now, &messages);
  if (failure_.ok()) CheckStall(now, &messages);
  return messages;
}

absl::Time StepAgreement::deadline() const {
  if (!failure_.ok()) return absl::InfiniteFuture();
  const absl::Duration timeout = options_.plan.terms.progress_timeout;
  const absl::Time settled =
      std::max(now_.trouble, all_back()) + std::min(kSettle, timeout);
  if (now_.warned) return settled;
  return std::min(settled, timeout_start() + timeout);
}

bool StepAgreement::voting() const {
  return options_.plan.terms.commit_vote && now_.tickets == options_.world_size;
}

absl::Time StepAgreement::waiting_since() const {
  if (voting()) return now_.first_vote;
  return std::min(now_.first_ticket, now_.first_vote);
}

absl::Time StepAgreement::timeout_start() const {
  return std::max(waiting_since(), all_back());
}

std::vector<int> StepAgreement::Missing() const {
  std::vector<int> missing;
  if (waiting_since() == absl::InfiniteFuture()) return missing;
  const bool votes = voting();
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (!(votes ? HasVote(rank) : HasTicket(rank))) missing.push_back(rank);
  }
  return missing;
}

void StepAgreement::Advance(absl::Time now, Messages* messages) {
  if (LeaversMissing()) now_.trouble = std::min(now_.trouble, now);
  if (now_.trouble != absl::InfiniteFuture()) {
    if (AllTicketsReceived() || now >= deadline()) FailRound();
    return;
  }
  if (now_.tickets < options_.world_size) return;
  if (strict() && !now_.granted) {
    now_.granted = true;
    messages->push_back(To(Message::Kind::kGrant, Message::kAllRanks, round_));
  }
  if (options_.plan.terms.commit_vote && now_.votes < options_.world_size) {
    return;
  }
  Decide(now, messages);
}

// Returns whether others wait for a rank that has left.
bool StepAgreement::LeaversMissing() const {
  if (!any_left_) return false;
  for (int rank : Missing()) {
    if (left_[static_cast<size_t>(rank)]) return true;
  }
  return false;
}

bool StepAgreement::AllTicketsReceived() const {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (!HasTicket(rank) && !left_[static_cast<size_t>(rank)]) return false;
  }
  return true;
}

void StepAgreement::Decide(absl::Time now, Messages* messages) {
  Decided decided{MakeDecision(now), now_.granted};
  const Decision& decision = decided.decision;
  Message message = To(Message::Kind::kDecision, Message::kAllRanks, round_);
  message.decision = decision;
  messages->push_back(std::move(message));

  stopped_ = !decision.stop.empty();
  regrouped_ = decision.regroup;
  if (!decision.checkpoint.empty()) checkpoint_.clear();
  if (!decision.newcomers.empty()) newcomers_.clear();
  next_step_ = decision.next_step;
  if (decision.plan.has_value()) {
    options_.plan = *decision.plan;
    options_.undelivered.reset();
  }
  for (std::optional<LastTicket>& last : last_tickets_) last->decided = true;
  decided_.push_back(std::move(decided));
  if (decided_.size() > kRemembered) decided_.pop_front();
  ++round_;
  now_ = Round();
}

bool StepAgreement::EndsWindow(const Ticket& ticket) const {
  return !options_.plan.terms.sync_each_batch || ticket.end_of_data ||
         ticket.micro + 1 >= ticket.window;
}

// Returns whether no rank has summed up anything: the round only ends the data.
bool StepAgreement::WithoutData() const {
  return std::all_of(last_tickets_.begin(), last_tickets_.end(),
                     [](const std::optional<LastTicket>& last) {
                       return last->ticket.micro_batches == 0;
                     });
}

Decision StepAgreement::MakeDecision(absl::Time now) const {
  Requests skip;
  Requests stop;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const size_t index = static_cast<size_t>(rank);
    const Ticket& ticket = last_tickets_[index]->ticket;
    if (!ticket.skip.empty()) skip.Add(rank, ticket.skip);
    if (!ticket.stop.empty()) stop.Add(rank, ticket.stop);
    if (!HasVote(rank)) continue;
    const Vote& vote = *last_votes_[index];
    if (!vote.commit) {
      skip.Add(rank, vote.reason.empty() ? "voted against it" : vote.reason);
    }
    if (!vote.stop.empty() && ticket.stop.empty()) stop.Add(rank, vote.stop);
  }
  const Ticket& first =
      last_tickets_[static_cast<size_t>(now_.first_rank)]->ticket;
  Decision decision;
  decision.round = round_;
  decision.step = first.step;
  decision.commit = skip.empty();
  decision.reason = skip.Text();
  decision.stop = stop.Text();
  decision.without_data = WithoutData();
  decision.next_step = decision.step;
  // A window keeps the plan that it began with, and the members.
  if (EndsWindow(first)) {
    if (!decision.without_data) ++*decision.next_step;
    decision.regroup = RegroupText(decision);
    decision.checkpoint = CheckpointText(decision);
    decision.plan = PlanAfter(decision);
    if (decision.commit && decision.stop.empty() && decision.regroup.empty()) {
      decision.newcomers = newcomers_;
    }
  }
  decision.sums = SumsOfVotes();
  // Cut as a rank that repeats it has it.
  CutTexts(&decision);
  decision.decided = now;
  decision.tickets_took = now_.last_ticket - now_.first_ticket;
  decision.last_rank = now_.last_rank;
  decision.plan_version = first.plan_version;
  return decision;
}

// In the order of ranks, so that it has the same bits whoever comes first.
std::optional<GradientSums> StepAgreement::SumsOfVotes() const {
  GradientSums all;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (!HasVote(rank)) return std::nullopt;
    const Vote& vote = *last_votes_[static_cast<size_t>(rank)];
    if (!vote.sums) return std::nullopt;
    all.sum_of_squares += vote.sums->sum_of_squares;
    // Each is at most kMaxStep.
    all.non_finite = std::min(kMaxStep, all.non_finite + vote.sums->non_finite);
  }
  return all;
}

std::string StepAgreement::RegroupText(const Decision& decision) const {
  const int64_t max_steps = options_.plan.terms.max_steps;
  const bool last = max_steps > 0 && *decision.next_step >= max_steps;
  if (!decision.stop.empty() || last) return "";
  std::vector<std::string> reasons = Asked(&Ticket::drain, "drain");
  if (!regroup_.empty()) reasons.push_back(regroup_);
  return absl::StrJoin(reasons, "; ");
}

std::vector<std::string> StepAgreement::Asked(std::string Ticket::*field,
                                              absl::string_view what) const {
  std::vector<std::string> reasons;
  size_t others = 0;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const Ticket& ticket = last_tickets_[static_cast<size_t>(rank)]->ticket;
    if ((ticket.*field).empty()) continue;
    if (reasons.size() == kMaxReasons) {
      ++others;
      continue;
    }
    const std::string name = options_.name_of ? options_.name_of(rank) : "";
    reasons.push_back(absl::StrCat(
        "rank ", rank, name.empty() ? "" : absl::StrCat(" (", name, ")"), " ",
        what, "s: ", ticket.*field));
  }
  if (others > 0) reasons.push_back(absl::StrCat(others, " others ", what));
  return reasons;
}

std::string StepAgreement::CheckpointText(const Decision& decision) const {
  if (!options_.checkpoints || !decision.commit || decision.without_data) {
    return "";
  }
  std::vector<std::string> reasons = Asked(&Ticket::checkpoint, "ask");
  const std::string planned = PlannedCheckpoint(
      options_.plan.terms.checkpoint_every, *decision.next_step);
  if (!planned.empty()) reasons.push_back(planned);
  if (!checkpoint_.empty()) reasons.push_back(checkpoint_);
  return absl::StrJoin(reasons, "; ");
}

std::optional<Plan> StepAgreement::PlanAfter(const Decision& decision) const {
  // The next generation begins with it anyway.
  if (!decision.regroup.empty()) return std::nullopt;
  if (options_.undelivered.has_value()) return options_.undelivered;
  if (!options_.next_plan) return std::nullopt;
  return options_.next_plan(*decision.next_step);
}

}  // namespace coxswain::schedule
