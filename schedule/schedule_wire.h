#ifndef COXSWAIN_SCHEDULE_SCHEDULE_WIRE_H_
#define COXSWAIN_SCHEDULE_SCHEDULE_WIRE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/rendezvous.pb.h"
#include "schedule/plan.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"

namespace coxswain::schedule {

// The schedule's messages, to and from the structs of this room, for whoever
// decides. Those that come in are taken apart. INVALID_ARGUMENT: a number that
// no program comes to, or a plan that is none.
absl::StatusOr<Ticket> TakeTicket(v1::Ticket* wire);
absl::StatusOr<Vote> TakeVote(v1::Vote* wire);
absl::StatusOr<StepDecision> TakePosition(v1::Position* wire);

// INVALID_ARGUMENT: a term that is not known here, or a value that the term
// cannot have.
absl::StatusOr<Plan> PlanFromWire(const v1::Plan& wire);
v1::Plan ToWire(const Plan& plan);

v1::Decision ToWire(const std::string& stream, const StepDecision& decision);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_SCHEDULE_WIRE_H_
