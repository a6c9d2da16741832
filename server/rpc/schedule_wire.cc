#include "server/rpc/schedule_wire.h"

#include "server/rpc/proto_conversion.h"

namespace coxswain::server {

v1::Decision DecisionToWire(const AttachEvent& event) {
  v1::Decision wire;
  wire.set_stream(event.stream);
  wire.set_round(event.round);
  wire.set_commit(event.commit);
  wire.set_reason(event.reason);
  wire.set_stop(event.stop);
  wire.set_regroup(event.regroup);
  wire.set_spell(event.spell);
  wire.set_checkpoint(event.checkpoint);
  if (event.plan.has_value()) *wire.mutable_plan() = ToProto(*event.plan);
  return wire;
}

}  // namespace coxswain::server
