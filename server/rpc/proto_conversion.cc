#include "server/rpc/proto_conversion.h"

#include "proto/rendezvous.pb.h"
#include "schedule/schedule_wire.h"
#include "server/membership/membership_types.h"

namespace coxswain::server {

Fence FromProto(const v1::Fence& proto) {
  Fence fence;
  fence.cluster_id = proto.cluster_id();
  fence.term = Term(proto.term());
  fence.job = proto.job();
  fence.generation = Generation(proto.generation());
  fence.incarnation = Incarnation(proto.incarnation());
  fence.request_id = proto.request_id();
  return fence;
}

absl::StatusOr<Plan> FromProto(const v1::Plan& proto) {
  return schedule::PlanFromWire(proto);
}

v1::Plan ToProto(const Plan& plan) { return schedule::ToWire(plan); }

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
