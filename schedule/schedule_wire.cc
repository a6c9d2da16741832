#include "schedule/schedule_wire.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/bounds.h"

namespace coxswain::schedule {
namespace {

// The two directions of a list of fields. A list calls Number() for each field
// that is a number, and Text() for each that is a text, with the struct's
// member, which may be a base's, and the message's accessors; so each field
// is listed once.
template <typename Struct, typename Message>
class IntoMessage {
 public:
  IntoMessage(const Struct& from, Message* to) : from_(from), to_(*to) {}

  template <typename Owner, typename Value, typename Get, typename Set>
  void Number(Value Owner::*member, Get /*get*/, Set set) const {
    (to_.*set)(from_.*member);
  }
  template <typename Owner>
  void Text(std::string Owner::*member, std::string* (Message::*text)()) const {
    *(to_.*text)() = from_.*member;
  }

 private:
  const Struct& from_;
  Message& to_;
};

template <typename Struct, typename Message>
class OutOfMessage {
 public:
  OutOfMessage(Message* from, Struct* to) : from_(*from), to_(*to) {}

  template <typename Owner, typename Value, typename Get, typename Set>
  void Number(Value Owner::*member, Get get, Set /*set*/) const {
    to_.*member = (from_.*get)();
  }
  // The text moves.
  template <typename Owner>
  void Text(std::string Owner::*member, std::string* (Message::*text)()) const {
    to_.*member = std::move(*(from_.*text)());
  }

 private:
  Message& from_;
  Struct& to_;
};

// All but the checksums, which may be missing.
template <typename Direction>
void TicketFields(const Direction& copy) {
  using M = v1::Ticket;
  copy.Number(&Ticket::round, &M::round, &M::set_round);
  copy.Number(&Ticket::step, &M::step, &M::set_step);
  copy.Number(&Ticket::micro, &M::micro, &M::set_micro);
  copy.Number(&Ticket::micro_batches, &M::micro_batches, &M::set_micro_batches);
  copy.Number(&Ticket::window, &M::window, &M::set_window);
  copy.Number(&Ticket::weight, &M::weight, &M::set_weight);
  copy.Number(&Ticket::end_of_data, &M::end_of_data, &M::set_end_of_data);
  copy.Number(&Ticket::plan_version, &M::plan_version, &M::set_plan_version);
  copy.Text(&Ticket::hook, &M::mutable_hook);
  copy.Number(&Ticket::layout, &M::layout, &M::set_layout);
  copy.Number(&Ticket::digest, &M::digest, &M::set_digest);
  copy.Number(&Ticket::pipeline, &M::pipeline, &M::set_pipeline);
  copy.Text(&Ticket::skip, &M::mutable_skip);
  copy.Text(&Ticket::stop, &M::mutable_stop);
  copy.Text(&Ticket::drain, &M::mutable_drain);
  copy.Text(&Ticket::checkpoint, &M::mutable_checkpoint);
}

// All but the sums, which may be missing.
template <typename Direction>
void VoteFields(const Direction& copy) {
  using M = v1::Vote;
  copy.Number(&Vote::round, &M::round, &M::set_round);
  copy.Number(&Vote::commit, &M::commit, &M::set_commit);
  copy.Text(&Vote::reason, &M::mutable_reason);
  copy.Text(&Vote::stop, &M::mutable_stop);
}

// All but the plan and the sums.
template <typename Direction>
void DecisionFields(const Direction& copy) {
  using M = v1::Decision;
  copy.Number(&Decision::round, &M::round, &M::set_round);
  copy.Number(&Decision::commit, &M::commit, &M::set_commit);
  copy.Text(&Decision::reason, &M::mutable_reason);
  copy.Text(&Decision::stop, &M::mutable_stop);
  copy.Text(&Decision::regroup, &M::mutable_regroup);
  copy.Text(&Decision::checkpoint, &M::mutable_checkpoint);
}

// All but the terms.
template <typename Direction>
void PlanFields(const Direction& copy) {
  using M = v1::Plan;
  copy.Number(&Plan::version, &M::version, &M::set_version);
  copy.Number(&Plan::accumulation_steps, &M::accumulation_steps,
              &M::set_accumulation_steps);
  copy.Text(&Plan::hook, &M::mutable_hook);
  copy.Number(&Plan::compression_start_step, &M::compression_start_step,
              &M::set_compression_start_step);
  copy.Number(&Plan::global_micro_batches, &M::global_micro_batches,
              &M::set_global_micro_batches);
  copy.Number(&Plan::at_step, &M::at_step, &M::set_at_step);
}

Plan FieldsOf(v1::Plan wire) {
  Plan plan;
  PlanFields(OutOfMessage<Plan, v1::Plan>(&wire, &plan));
  return plan;
}

// All but the plan.
Decision FieldsOf(v1::Decision* wire) {
  Decision decision;
  DecisionFields(OutOfMessage<Decision, v1::Decision>(wire, &decision));
  if (wire->has_sums()) decision.sums = SumsFromWire(wire->sums());
  for (const v1::CatchUp& newcomer : wire->newcomers()) {
    if (decision.newcomers.size() == kMaxNewcomers) break;
    decision.newcomers.push_back(
        {newcomer.address(), newcomer.secret(), newcomer.incarnation()});
  }
  return decision;
}

}  // namespace

v1::GradientSums ToWire(const GradientSums& sums) {
  v1::GradientSums wire;
  wire.set_sum_of_squares(sums.sum_of_squares);
  wire.set_non_finite(sums.non_finite);
  return wire;
}

GradientSums SumsFromWire(const v1::GradientSums& wire) {
  return {wire.sum_of_squares(), wire.non_finite()};
}

v1::Ticket ToWire(absl::string_view stream, const Ticket& ticket) {
  v1::Ticket wire;
  wire.set_stream(std::string(stream));
  TicketFields(IntoMessage<Ticket, v1::Ticket>(ticket, &wire));
  wire.set_has_checksum(ticket.checksum.has_value());
  wire.set_checksum(ticket.checksum.value_or(0));
  wire.set_has_replicated_checksum(ticket.replicated_checksum.has_value());
  wire.set_replicated_checksum(ticket.replicated_checksum.value_or(0));
  return wire;
}

absl::StatusOr<Ticket> TakeTicket(v1::Ticket* wire) {
  Ticket ticket;
  TicketFields(OutOfMessage<Ticket, v1::Ticket>(wire, &ticket));
  if (wire->has_checksum()) ticket.checksum = wire->checksum();
  if (wire->has_replicated_checksum()) {
    ticket.replicated_checksum = wire->replicated_checksum();
  }
  COXSWAIN_RETURN_IF_ERROR(CheckTicket(ticket));
  return ticket;
}

v1::Vote ToWire(absl::string_view stream, const Vote& vote) {
  v1::Vote wire;
  wire.set_stream(std::string(stream));
  VoteFields(IntoMessage<Vote, v1::Vote>(vote, &wire));
  if (vote.sums) *wire.mutable_sums() = ToWire(*vote.sums);
  return wire;
}

absl::StatusOr<Vote> TakeVote(v1::Vote* wire) {
  Vote vote;
  VoteFields(OutOfMessage<Vote, v1::Vote>(wire, &vote));
  if (wire->has_sums()) vote.sums = SumsFromWire(wire->sums());
  COXSWAIN_RETURN_IF_ERROR(CheckVote(vote));
  return vote;
}

v1::Decision ToWire(absl::string_view stream, const Decision& decision) {
  v1::Decision wire;
  wire.set_stream(std::string(stream));
  DecisionFields(IntoMessage<Decision, v1::Decision>(decision, &wire));
  if (decision.plan.has_value()) *wire.mutable_plan() = ToWire(*decision.plan);
  if (decision.sums) *wire.mutable_sums() = ToWire(*decision.sums);
  for (const Newcomer& newcomer : decision.newcomers) {
    v1::CatchUp* const added = wire.add_newcomers();
    added->set_address(newcomer.address);
    added->set_secret(newcomer.secret);
    added->set_incarnation(newcomer.incarnation);
  }
  return wire;
}

absl::StatusOr<Decision> TakeDecision(v1::Decision* wire) {
  Decision decision = FieldsOf(wire);
  if (wire->has_plan()) {
    COXSWAIN_ASSIGN_OR_RETURN(decision.plan, PlanOfCoordinator(wire->plan()));
  }
  return decision;
}

absl::StatusOr<Decision> TakePosition(v1::Position* wire) {
  v1::Decision* const last = wire->mutable_last();
  Decision decision = FieldsOf(last);
  if (last->has_plan()) {
    COXSWAIN_ASSIGN_OR_RETURN(decision.plan, PlanFromWire(last->plan()));
    COXSWAIN_RETURN_IF_ERROR(decision.plan->terms.Validate());
  }
  CutTexts(&decision);
  COXSWAIN_RETURN_IF_ERROR(CheckPosition(decision));
  return decision;
}

v1::AttachEvent ToWire(const Message& message) {
  v1::AttachEvent event;
  switch (message.kind) {
    case Message::Kind::kGrant:
      event.mutable_grant()->set_stream(message.stream);
      event.mutable_grant()->set_round(message.round);
      break;
    case Message::Kind::kDecision:
      *event.mutable_decision() = ToWire(message.stream, message.decision);
      event.mutable_decision()->set_fallback_epoch(message.epoch.fallback);
      break;
    case Message::Kind::kWarning:
      event.mutable_warning()->set_text(message.text);
      break;
    case Message::Kind::kLearned:  // is sent to no rank
      break;
  }
  return event;
}

v1::Plan ToWire(const Plan& plan) {
  v1::Plan wire;
  PlanFields(IntoMessage<Plan, v1::Plan>(plan, &wire));
  // A term that has its default means the same where it is missing, also to a
  // version that does not know it yet.
  const std::map<std::string, std::string> defaults = Terms().ToMap();
  for (const auto& [name, value] : plan.terms.ToMap()) {
    if (value != defaults.at(name)) (*wire.mutable_terms())[name] = value;
  }
  return wire;
}

void ChangeWire(const Plan& plan, const std::vector<std::string>& terms,
                v1::Plan* wire) {
  PlanFields(IntoMessage<Plan, v1::Plan>(plan, wire));
  const std::map<std::string, std::string> values = plan.terms.ToMap();
  for (const std::string& name : terms) {
    (*wire->mutable_terms())[name] = values.at(name);
  }
}

absl::StatusOr<Plan> PlanFromWire(const v1::Plan& wire) {
  Plan plan = FieldsOf(wire);
  COXSWAIN_ASSIGN_OR_RETURN(
      plan.terms, Terms::FromMap({wire.terms().begin(), wire.terms().end()}));
  COXSWAIN_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

absl::StatusOr<Plan> PlanOfCoordinator(const v1::Plan& wire) {
  absl::StatusOr<Plan> plan = PlanFromWire(wire);
  if (plan.ok()) return plan;
  return absl::FailedPreconditionError(absl::StrCat(
      "plan ", wire.version(),
      " of the coordinator cannot be followed: ", plan.status().message(),
      "; if the coordinator is of a newer version, update this worker"));
}

Plan KnownPartOf(const v1::Plan& wire,
                 std::map<std::string, std::string>* unknown) {
  Plan plan = FieldsOf(wire);
  for (const auto& [name, value] : wire.terms()) {
    if (!plan.terms.Set(name, value).ok()) (*unknown)[name] = value;
  }
  return plan;
}

void SettingsToWire(const StepSettings& settings, v1::Manifest* wire) {
  wire->set_accumulation_steps(settings.accumulation_steps);
  wire->set_hook(settings.hook);
  wire->set_compression_start(settings.compression_start_step + 1);
}

StepSettings SettingsFromWire(const v1::Manifest& wire) {
  StepSettings settings;
  settings.accumulation_steps = wire.accumulation_steps();
  settings.hook = wire.hook();
  // The lowest of all is refused as the one above it is.
  settings.compression_start_step =
      std::max(wire.compression_start(),
               std::numeric_limits<int64_t>::min() + 1) -
      1;
  return settings;
}

}  // namespace coxswain::schedule
