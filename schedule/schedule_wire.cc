#include "schedule/schedule_wire.h"

#include <utility>

#include "base/status_macros.h"
#include "schedule/bounds.h"
#include "schedule/plan_terms.h"

namespace coxswain::schedule {

absl::StatusOr<Ticket> TakeTicket(v1::Ticket* wire) {
  Ticket ticket;
  ticket.round = wire->round();
  ticket.step = wire->step();
  ticket.micro = wire->micro();
  ticket.micro_batches = wire->micro_batches();
  ticket.window = wire->window();
  ticket.weight = wire->weight();
  ticket.end_of_data = wire->end_of_data();
  ticket.plan_version = wire->plan_version();
  ticket.hook = std::move(*wire->mutable_hook());
  ticket.layout = wire->layout();
  ticket.digest = wire->digest();
  if (wire->has_checksum()) ticket.checksum = wire->checksum();
  ticket.skip = std::move(*wire->mutable_skip());
  ticket.stop = std::move(*wire->mutable_stop());
  ticket.drain = std::move(*wire->mutable_drain());
  ticket.checkpoint = std::move(*wire->mutable_checkpoint());
  COXSWAIN_RETURN_IF_ERROR(CheckTicket(ticket));
  return ticket;
}

absl::StatusOr<Vote> TakeVote(v1::Vote* wire) {
  Vote vote;
  vote.round = wire->round();
  vote.commit = wire->commit();
  vote.reason = std::move(*wire->mutable_reason());
  vote.stop = std::move(*wire->mutable_stop());
  COXSWAIN_RETURN_IF_ERROR(CheckVote(vote));
  return vote;
}

absl::StatusOr<StepDecision> TakePosition(v1::Position* wire) {
  v1::Decision& last = *wire->mutable_last();
  StepDecision decision;
  decision.round = last.round();
  decision.commit = last.commit();
  decision.reason = std::move(*last.mutable_reason());
  decision.stop = std::move(*last.mutable_stop());
  decision.regroup = std::move(*last.mutable_regroup());
  decision.checkpoint = std::move(*last.mutable_checkpoint());
  if (last.has_plan()) {
    COXSWAIN_ASSIGN_OR_RETURN(decision.plan, PlanFromWire(last.plan()));
  }
  CutTexts(&decision);
  COXSWAIN_RETURN_IF_ERROR(CheckPosition(decision));
  return decision;
}

absl::StatusOr<Plan> PlanFromWire(const v1::Plan& wire) {
  Plan plan;
  COXSWAIN_ASSIGN_OR_RETURN(
      plan.terms, ReadTerms({wire.terms().begin(), wire.terms().end()}));
  plan.version = wire.version();
  plan.accumulation_steps = wire.accumulation_steps();
  plan.hook = wire.hook();
  plan.compression_start_step = wire.compression_start_step();
  plan.global_micro_batches = wire.global_micro_batches();
  plan.at_step = wire.at_step();
  COXSWAIN_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

v1::Plan ToWire(const Plan& plan) {
  v1::Plan wire;
  wire.set_version(plan.version);
  wire.set_accumulation_steps(plan.accumulation_steps);
  wire.set_hook(plan.hook);
  wire.set_compression_start_step(plan.compression_start_step);
  for (const auto& [name, value] : plan.terms.ToMap()) {
    (*wire.mutable_terms())[name] = value;
  }
  wire.set_global_micro_batches(plan.global_micro_batches);
  wire.set_at_step(plan.at_step);
  return wire;
}

v1::Decision ToWire(const std::string& stream, const StepDecision& decision) {
  v1::Decision wire;
  wire.set_stream(stream);
  wire.set_round(decision.round);
  wire.set_commit(decision.commit);
  wire.set_reason(decision.reason);
  wire.set_stop(decision.stop);
  wire.set_regroup(decision.regroup);
  wire.set_checkpoint(decision.checkpoint);
  if (decision.plan.has_value()) *wire.mutable_plan() = ToWire(*decision.plan);
  return wire;
}

}  // namespace coxswain::schedule
