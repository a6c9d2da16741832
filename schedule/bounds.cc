#include "schedule/bounds.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/peer_text.h"
#include "base/status_macros.h"

namespace coxswain::schedule {
namespace {

absl::Status CheckNumber(absl::string_view what, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must be 0 to ", most, ", not ", value));
}

absl::Status CheckSums(absl::string_view what,
                       const std::optional<GradientSums>& sums) {
  if (!sums) return absl::OkStatus();
  return CheckNumber(absl::StrCat(what, ".sums.non_finite"), sums->non_finite,
                     kMaxStep);
}

std::string Cut(absl::string_view text, size_t max_bytes) {
  return OneLine(Shorten(text, max_bytes));
}

}  // namespace

absl::Status CheckStreamName(absl::string_view name, size_t max_bytes) {
  const bool valid =
      !name.empty() && name.size() <= max_bytes &&
      std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
      });
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", Cut(name, kMaxStreamBytes), "' is not the name of a stream: 1 to ",
      max_bytes, " characters of [A-Za-z0-9._-]; this one has ", name.size()));
}

absl::Status CheckTicket(const Ticket& ticket) {
  COXSWAIN_RETURN_IF_ERROR(
      CheckNumber("ticket.round", ticket.round, kMaxRound));
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("ticket.step", ticket.step, kMaxRound));
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("ticket.micro", ticket.micro, kMaxStep));
  COXSWAIN_RETURN_IF_ERROR(
      CheckNumber("ticket.micro_batches", ticket.micro_batches, kMaxStep));
  return CheckNumber("ticket.window", ticket.window, kMaxStep);
}

absl::Status CheckVote(const Vote& vote) {
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("vote.round", vote.round, kMaxRound));
  return CheckSums("vote", vote.sums);
}

absl::Status CheckPlan(const Plan& plan) {
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("plan.version", plan.version, kMaxStep));
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("plan.accumulation_steps",
                                       plan.accumulation_steps, kMaxStep));
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("plan.global_micro_batches",
                                       plan.global_micro_batches, kMaxStep));
  COXSWAIN_RETURN_IF_ERROR(plan.Check("plan."));
  if (plan.at_step < Plan::kAtNextStep || plan.at_step > kMaxStep) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan.at_step must be a step up to ", kMaxStep,
        ", 0 for the next generation, or -1 for the next step, not ",
        plan.at_step));
  }
  return absl::OkStatus();
}

absl::Status CheckPosition(const Decision& last) {
  COXSWAIN_RETURN_IF_ERROR(
      CheckNumber("position.round", last.round, kMaxRound));
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("position.step", last.step, kMaxRound));
  COXSWAIN_RETURN_IF_ERROR(
      CheckNumber("position.next_step", last.next_step.value_or(0), kMaxStep));
  COXSWAIN_RETURN_IF_ERROR(CheckSums("position", last.sums));
  for (const std::string* text :
       {&last.reason, &last.stop, &last.regroup, &last.checkpoint}) {
    if (text->size() <= kMaxDecisionTextBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a text of a position must have at most ",
                     kMaxDecisionTextBytes, " bytes, not ", text->size()));
  }
  if (!last.plan.has_value()) return absl::OkStatus();
  if (last.plan->version < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "position.plan.version must be from 1, not ", last.plan->version));
  }
  return CheckPlan(*last.plan);
}

std::string CutReason(absl::string_view reason) {
  return Cut(reason, kMaxReasonBytes);
}

void CutTexts(Ticket* ticket) {
  ticket->hook = Shorten(ticket->hook, kMaxHookBytes);
  for (std::string* text :
       {&ticket->skip, &ticket->stop, &ticket->drain, &ticket->checkpoint}) {
    *text = CutReason(*text);
  }
}

void CutTexts(Vote* vote) {
  vote->reason = CutReason(vote->reason);
  vote->stop = CutReason(vote->stop);
}

void CutTexts(Decision* decision) {
  for (std::string* text : {&decision->reason, &decision->stop,
                            &decision->regroup, &decision->checkpoint}) {
    *text = Cut(*text, kMaxDecisionTextBytes);
  }
}

}  // namespace coxswain::schedule
