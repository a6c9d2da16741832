#include "client/schedule/schedule_wire.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

v1::Ticket ToWire(const StepTicket& ticket) {
  v1::Ticket wire;
  wire.set_step(ticket.step);
  wire.set_micro(ticket.micro);
  wire.set_micro_batches(ticket.micro_batches);
  wire.set_window(ticket.window);
  wire.set_weight(ticket.weight);
  wire.set_end_of_data(ticket.end_of_data);
  wire.set_plan_version(ticket.plan_version);
  wire.set_hook(ticket.hook);
  wire.set_layout(ticket.layout);
  wire.set_digest(ticket.digest);
  wire.set_has_checksum(ticket.checksum.has_value());
  wire.set_checksum(ticket.checksum.value_or(0));
  wire.set_skip(ticket.skip);
  return wire;
}

v1::Plan ToWire(const JobPlan& plan) {
  v1::Plan wire;
  wire.set_version(plan.version);
  wire.set_accumulation_steps(plan.accumulation_steps);
  wire.set_hook(plan.hook);
  wire.set_compression_start_step(plan.compression_start_step);
  wire.set_global_micro_batches(plan.global_micro_batches);
  for (const auto& [name, value] : plan.terms.ToMap()) {
    (*wire.mutable_terms())[name] = value;
  }
  return wire;
}

}  // namespace

absl::StatusOr<JobPlan> FromWire(const v1::Plan& wire) {
  JobPlan plan;
  plan.version = wire.version();
  plan.accumulation_steps = wire.accumulation_steps();
  plan.hook = wire.hook();
  plan.compression_start_step = wire.compression_start_step();
  plan.global_micro_batches = wire.global_micro_batches();
  const auto terms = ScheduleTerms::FromMap(std::map<std::string, std::string>(
      wire.terms().begin(), wire.terms().end()));
  if (!terms.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "plan ", wire.version(),
        " of the coordinator cannot be followed: ", terms.status().message(),
        "; if the coordinator is of a newer version, update this worker"));
  }
  plan.terms = *terms;
  return plan;
}

absl::StatusOr<StepDecision> FromWire(const v1::Decision& wire) {
  StepDecision decision;
  decision.commit = wire.commit();
  decision.reason = wire.reason();
  decision.stop = wire.stop();
  decision.regroup = wire.regroup();
  decision.checkpoint = wire.checkpoint();
  if (wire.has_plan()) {
    COXSWAIN_ASSIGN_OR_RETURN(decision.plan, FromWire(wire.plan()));
  }
  return decision;
}

v1::AttachRequest ToWire(const std::string& stream,
                         const StepAgent::Outgoing& outgoing) {
  v1::AttachRequest request;
  if (outgoing.ticket.has_value()) {
    v1::Ticket& ticket = *request.mutable_ticket();
    ticket = ToWire(*outgoing.ticket);
    ticket.set_stream(stream);
    ticket.set_round(outgoing.round);
    ticket.set_stop(outgoing.stop);
    ticket.set_drain(outgoing.drain);
    ticket.set_checkpoint(outgoing.checkpoint);
  } else if (outgoing.vote.has_value()) {
    v1::Vote& vote = *request.mutable_vote();
    vote.set_stream(stream);
    vote.set_round(outgoing.round);
    vote.set_commit(outgoing.vote->commit);
    vote.set_reason(outgoing.vote->reason);
    vote.set_stop(outgoing.stop);
  }
  return request;
}

v1::AttachRequest ToWire(const std::string& stream,
                         const StepAgent::Heard& heard) {
  v1::AttachRequest request;
  v1::Decision& last = *request.mutable_position()->mutable_last();
  last.set_stream(stream);
  last.set_round(heard.round);
  last.set_commit(heard.decision.commit);
  last.set_reason(heard.decision.reason);
  last.set_stop(heard.decision.stop);
  last.set_regroup(heard.decision.regroup);
  last.set_checkpoint(heard.decision.checkpoint);
  if (heard.decision.plan.has_value()) {
    *last.mutable_plan() = ToWire(*heard.decision.plan);
  }
  return request;
}

}  // namespace coxswain
