#include "server/membership/member_proto.h"

#include "schedule/plan.h"
#include "schedule/schedule_wire.h"

namespace coxswain::server {

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
  proto.set_coordinates(member.coordinates);
  return proto;
}

v1::Manifest ToProto(const Manifest& manifest) {
  v1::Manifest proto;
  proto.set_world_size(manifest.world_size);
  proto.set_min_world_size(manifest.min_world_size);
  proto.set_mesh(manifest.mesh);
  schedule::SettingsToWire(manifest, &proto);
  for (const ParameterInfo& parameter : manifest.parameters) {
    v1::ParameterInfo* const out = proto.add_parameters();
    out->set_name(parameter.name);
    out->set_dtype(parameter.dtype);
    for (const int64_t size : parameter.shape) out->add_shape(size);
    for (const int64_t stride : parameter.strides) out->add_strides(stride);
  }
  for (const auto& [key, value] : manifest.settings) {
    (*proto.mutable_settings())[key] = value;
  }
  for (const auto& [key, value] : manifest.terms) {
    (*proto.mutable_terms())[key] = value;
  }
  return proto;
}

WorkerIdentity FromProto(const v1::WorkerIdentity& proto) {
  return WorkerIdentity{proto.node(), proto.slot()};
}

Member FromProto(const v1::Member& proto) {
  Member member;
  member.identity = FromProto(proto.identity());
  member.incarnation = Incarnation(proto.incarnation());
  member.rank = proto.rank();
  member.local_rank = proto.local_rank();
  member.host = proto.host();
  member.address = proto.address();
  member.topology.assign(proto.topology().begin(), proto.topology().end());
  member.coordinates = proto.coordinates();
  return member;
}

Manifest FromProto(const v1::Manifest& proto) {
  Manifest manifest;
  manifest.world_size = proto.world_size();
  manifest.min_world_size = proto.min_world_size();
  manifest.mesh = proto.mesh();
  static_cast<schedule::StepSettings&>(manifest) =
      schedule::SettingsFromWire(proto);
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

}  // namespace coxswain::server
