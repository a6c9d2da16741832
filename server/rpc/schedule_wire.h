#ifndef COXSWAIN_SERVER_RPC_SCHEDULE_WIRE_H_
#define COXSWAIN_SERVER_RPC_SCHEDULE_WIRE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/rendezvous.pb.h"
#include "server/membership/membership.h"
#include "server/schedule/step_agreement.h"
#include "server/schedule/ticket.h"

namespace coxswain::server {

// The schedule's messages, to and from the structs of the core. Those that come
// in are taken apart. INVALID_ARGUMENT: a number that no program comes to, or a
// plan that is none.
absl::StatusOr<Ticket> TakeTicket(v1::Ticket* wire);
absl::StatusOr<Vote> TakeVote(v1::Vote* wire);
absl::StatusOr<StepDecision> TakePosition(v1::Position* wire);

v1::Decision DecisionToWire(const AttachEvent& event);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_SCHEDULE_WIRE_H_
