#include "server/rpc/proto_conversion.h"

#include <algorithm>
#include <cstdint>
#include <limits>

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

WorkerIdentity FromProto(const v1::WorkerIdentity& proto) {
  return WorkerIdentity{proto.node(), proto.slot()};
}

Manifest FromProto(const v1::Manifest& proto) {
  Manifest manifest;
  manifest.world_size = proto.world_size();
  manifest.hook = proto.hook();
  manifest.accumulation_steps = proto.accumulation_steps();
  // The lowest of all is refused as the one above it is.
  manifest.compression_start_step =
      std::max(proto.compression_start(),
               std::numeric_limits<int64_t>::min() + 1) -
      1;
  manifest.parameters.reserve(proto.parameters_size());
  for (const v1::ParameterInfo& parameter : proto.parameters()) {
    manifest.parameters.push_back(
        {parameter.name(),
         {parameter.shape().begin(), parameter.shape().end()},
         parameter.dtype(),
         {parameter.strides().begin(), parameter.strides().end()}});
  }
  manifest.settings.insert(proto.settings().begin(), proto.settings().end());
  manifest.terms.insert(proto.terms().begin(), proto.terms().end());
  return manifest;
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

v1::WorkerIdentity ToProto(const WorkerIdentity& identity) {
  v1::WorkerIdentity proto;
  proto.set_node(identity.node);
  proto.set_slot(identity.slot);
  return proto;
}

v1::Member ToProto(const Member& member) {
  v1::Member proto;
  *proto.mutable_identity() = ToProto(member.identity);
  proto.set_incarnation(member.incarnation.value());
  proto.set_rank(member.rank);
  proto.set_local_rank(member.local_rank);
  proto.set_host(member.host);
  proto.set_address(member.address);
  for (const std::string& key : member.topology) proto.add_topology(key);
  return proto;
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
