// How a StepAgreement goes on with the rounds of another coordinator.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "schedule/bounds.h"
#include "schedule/step_agreement.h"

namespace coxswain::schedule {
namespace {

int64_t VersionOf(const std::optional<Plan>& plan) {
  return plan.has_value() ? plan->version : 0;
}

}  // namespace

void StepAgreement::OnBack(int rank, absl::Time now) {
  const auto index = static_cast<size_t>(rank);
  if (!absent_[index]) return;
  absent_[index] = false;
  --absent_count_;
  all_back_ = now;
}

void StepAgreement::RequestRegroup(absl::string_view reason) {
  regroup_ = CutReason(reason);
}

void StepAgreement::RequestCheckpoint(absl::string_view reason) {
  checkpoint_ = CutReason(reason);
}

bool StepAgreement::AwaitsPosition(int rank) const {
  return !positioned_[static_cast<size_t>(rank)];
}

void StepAgreement::Restore(const Decision& last) {
  COXSWAIN_CHECK(options_.resumed && now_.tickets == 0);
  if (last.round < round_) return;
  Decision learned = last;
  CutTexts(&learned);
  Learn(std::move(learned));
}

StepAgreement::Messages StepAgreement::OnPosition(int rank,
                                                  const Decision& last,
                                                  absl::Time now) {
  COXSWAIN_CHECK(rank >= 0 && rank < options_.world_size);
  Messages messages;
  if (!failure_.ok()) return messages;
  OnBack(rank, now);
  Decision reported = last;
  CutTexts(&reported);
  const bool news = reported.round >= round_;
  const int64_t version = VersionOf(reported.plan);
  if (news && options_.plans_from_positions && version > 0 &&
      !KnownPlan(version)) {
    options_.undelivered = reported.plan;
  }
  if (news ? !AwaitsPosition(rank) || (version > 0 && !KnownPlan(version))
           : Contradicts(reported)) {
    FailRank(rank, absl::StrCat("has received a decision on round ", last.round,
                                " that was not made"));
    return messages;
  }
  positioned_[static_cast<size_t>(rank)] = true;
  if (news) {
    if (version > 0) reported.plan = KnownPlan(version);
    Learn(std::move(reported));
    Message message;
    message.kind = Message::Kind::kLearned;
    message.round = last.round;
    message.decision = decided_.back().decision;
    messages.push_back(std::move(message));
    AnswerAllOf(last.round, &messages);
  }
  NoteReceived(rank, last.round, now);
  ReleasePending(now, &messages);
  return messages;
}

std::optional<Plan> StepAgreement::KnownPlan(int64_t version) const {
  if (options_.plan.version == version) return options_.plan;
  if (VersionOf(options_.undelivered) == version) return options_.undelivered;
  return std::nullopt;
}

bool StepAgreement::Contradicts(const Decision& reported) const {
  for (const Decided& decided : decided_) {
    const Decision& known = decided.decision;
    if (known.round != reported.round) continue;
    return known.commit != reported.commit || known.stop != reported.stop ||
           known.regroup != reported.regroup ||
           known.checkpoint != reported.checkpoint ||
           VersionOf(known.plan) != VersionOf(reported.plan);
  }
  return false;
}

void StepAgreement::Learn(Decision decision) {
  const bool plan_is_new =
      decision.plan.has_value() && options_.undelivered.has_value() &&
      decision.plan->version == options_.undelivered->version;
  if (plan_is_new) {
    options_.plan = *std::exchange(options_.undelivered, std::nullopt);
  }
  if (decision.round == round_ && now_.tickets > 0) decision.step = step();
  for (std::optional<LastTicket>& last : last_tickets_) {
    if (last.has_value()) last->decided = true;
  }
  stopped_ = !decision.stop.empty();
  regrouped_ = decision.regroup;
  next_step_ = decision.next_step;
  round_ = decision.round + 1;
  now_ = Round();
  decided_.clear();
  decided_.push_back({std::move(decision), false});
}

// A rank that has received the decision on a round had announced it.
void StepAgreement::NoteReceived(int rank, int64_t round, absl::Time now) {
  std::optional<LastTicket>& last = last_tickets_[static_cast<size_t>(rank)];
  if (last.has_value() && last->ticket.round >= round) return;
  last.emplace();
  last->ticket.round = round;
  last->at = now;
  last->decided = true;
  last->inferred = true;
}

void StepAgreement::AnswerAllOf(int64_t round, Messages* messages) const {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const std::optional<LastTicket>& last =
        last_tickets_[static_cast<size_t>(rank)];
    if (last.has_value() && last->ticket.round == round) {
      AnswerDecided(rank, round, messages);
    }
  }
}

void StepAgreement::ReleasePending(absl::Time now, Messages* messages) {
  const std::map<int, Pending> pending = std::exchange(pending_, {});
  for (const auto& [rank, held] : pending) {
    if (held.ticket.has_value()) {
      Messages more = OnTicket(rank, *held.ticket, now);
      messages->insert(messages->end(), more.begin(), more.end());
    }
    if (held.vote.has_value()) {
      Messages more = OnVote(rank, *held.vote, now);
      messages->insert(messages->end(), more.begin(), more.end());
    }
  }
}

}  // namespace coxswain::schedule
