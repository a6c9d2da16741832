#include "server/rpc/schedule_wire.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "server/rpc/proto_conversion.h"
#include "server/schedule/plan.h"

namespace coxswain::server {
namespace {

// What is computed with must be a number that a program can come to.
absl::Status CheckNumber(absl::string_view what, int64_t value) {
  if (value >= 0 && value <= kMaxStep) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must be 0 to ", kMaxStep, ", not ", value));
}

absl::Status CheckNumbers(const v1::Ticket& wire) {
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("ticket.round", wire.round()));
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("ticket.step", wire.step()));
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("ticket.micro", wire.micro()));
  COXSWAIN_RETURN_IF_ERROR(
      CheckNumber("ticket.micro_batches", wire.micro_batches()));
  return CheckNumber("ticket.window", wire.window());
}

}  // namespace

absl::StatusOr<Ticket> TakeTicket(v1::Ticket* wire) {
  COXSWAIN_RETURN_IF_ERROR(CheckNumbers(*wire));
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
  return ticket;
}

absl::StatusOr<Vote> TakeVote(v1::Vote* wire) {
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("vote.round", wire->round()));
  Vote vote;
  vote.round = wire->round();
  vote.commit = wire->commit();
  vote.reason = std::move(*wire->mutable_reason());
  vote.stop = std::move(*wire->mutable_stop());
  return vote;
}

absl::StatusOr<StepDecision> TakePosition(v1::Position* wire) {
  v1::Decision& last = *wire->mutable_last();
  COXSWAIN_RETURN_IF_ERROR(CheckNumber("position.round", last.round()));
  StepDecision decision;
  decision.round = last.round();
  decision.commit = last.commit();
  decision.reason = std::move(*last.mutable_reason());
  decision.stop = std::move(*last.mutable_stop());
  decision.regroup = std::move(*last.mutable_regroup());
  if (last.has_plan()) {
    COXSWAIN_ASSIGN_OR_RETURN(decision.plan, FromProto(last.plan()));
  }
  return decision;
}

v1::Decision DecisionToWire(const AttachEvent& event) {
  v1::Decision wire;
  wire.set_stream(event.stream);
  wire.set_round(event.round);
  wire.set_commit(event.commit);
  wire.set_reason(event.reason);
  wire.set_stop(event.stop);
  wire.set_regroup(event.regroup);
  if (event.plan.has_value()) *wire.mutable_plan() = ToProto(*event.plan);
  return wire;
}

}  // namespace coxswain::server
