#include "server/rpc/proto_conversion.h"

#include "schedule/schedule_wire.h"

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

}  // namespace coxswain::server
