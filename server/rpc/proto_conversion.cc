#include "server/rpc/proto_conversion.h"

#include "base/status_macros.h"
#include "server/schedule/plan_terms.h"

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
  Plan plan;
  COXSWAIN_ASSIGN_OR_RETURN(
      plan.terms, ReadTerms({proto.terms().begin(), proto.terms().end()}));
  plan.version = proto.version();
  plan.accumulation_steps = proto.accumulation_steps();
  plan.hook = proto.hook();
  plan.compression_start_step = proto.compression_start_step();
  plan.global_micro_batches = proto.global_micro_batches();
  plan.at_step = proto.at_step();
  return plan;
}

v1::Plan ToProto(const Plan& plan) {
  v1::Plan proto;
  proto.set_version(plan.version);
  proto.set_accumulation_steps(plan.accumulation_steps);
  proto.set_hook(plan.hook);
  proto.set_compression_start_step(plan.compression_start_step);
  for (const auto& [name, value] : plan.terms.ToMap()) {
    (*proto.mutable_terms())[name] = value;
  }
  proto.set_global_micro_batches(plan.global_micro_batches);
  proto.set_at_step(plan.at_step);
  return proto;
}

}  // namespace coxswain::server
