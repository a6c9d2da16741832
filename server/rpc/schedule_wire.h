#ifndef COXSWAIN_SERVER_RPC_SCHEDULE_WIRE_H_
#define COXSWAIN_SERVER_RPC_SCHEDULE_WIRE_H_

#include "proto/rendezvous.pb.h"
#include "schedule/schedule_wire.h"
#include "server/membership/membership.h"

namespace coxswain::server {

using schedule::TakePosition;
using schedule::TakeTicket;
using schedule::TakeVote;

v1::Decision DecisionToWire(const AttachEvent& event);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_SCHEDULE_WIRE_H_
