#include "client/session/session_wire.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/version.h"

namespace coxswain {
namespace {

constexpr absl::Duration kSpreadPerMember = absl::Milliseconds(1);

std::vector<int64_t> RowMajor(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(1, shape[i]);
  }
  return strides;
}

void AddParameter(const ParameterSpec& parameter, v1::Manifest* manifest) {
  v1::ParameterInfo* info = manifest->add_parameters();
  info->set_name(parameter.name);
  info->mutable_shape()->Assign(parameter.shape.begin(), parameter.shape.end());
  info->set_dtype(std::string(NameOf(parameter.dtype)));
  if (parameter.strides != RowMajor(parameter.shape)) {
    info->mutable_strides()->Assign(parameter.strides.begin(),
                                    parameter.strides.end());
  }
}

// Those that differ from the defaults: a coordinator need not know the others.
void AddTerms(const ScheduleTerms& terms, v1::Manifest* manifest) {
  const auto defaults = ScheduleTerms().ToMap();
  for (const auto& [name, value] : terms.ToMap()) {
    if (defaults.at(name) != value) (*manifest->mutable_terms())[name] = value;
  }
}

JobMember FromWire(const v1::Member& wire) {
  JobMember member;
  member.identity = {wire.identity().node(), wire.identity().slot()};
  member.incarnation = Incarnation(wire.incarnation());
  member.rank = wire.rank();
  member.local_rank = wire.local_rank();
  member.host = wire.host();
  member.address = wire.address();
  member.topology = {wire.topology().begin(), wire.topology().end()};
  return member;
}

}  // namespace

v1::JoinRequest MakeJoinRequest(const SessionOptions& options,
                                const JobManifest& manifest) {
  v1::JoinRequest request;
  request.set_job(options.job);
  request.mutable_identity()->set_node(options.identity.node);
  request.mutable_identity()->set_slot(options.identity.slot);
  request.set_incarnation(options.incarnation.value());
  request.set_launcher_id(options.launcher_id);
  request.set_host(options.host);
  request.set_address(options.address);
  request.mutable_topology()->Assign(options.topology.begin(),
                                     options.topology.end());
  request.set_after_generation(options.after_generation);
  request.set_attempt(options.attempt);
  v1::Manifest* wire = request.mutable_manifest();
  wire->set_world_size(options.world_size);
  // Said one way only: manifests are compared.
  if (options.min_world_size < options.world_size) {
    wire->set_min_world_size(options.min_world_size);
  }
  wire->set_hook(manifest.hook);
  wire->set_accumulation_steps(manifest.accumulation_steps);
  wire->set_compression_start(manifest.compression_start_step + 1);
  for (const ParameterSpec& parameter : manifest.parameters) {
    AddParameter(parameter, wire);
  }
  AddTerms(manifest.terms, wire);
  wire->mutable_settings()->insert(manifest.settings.begin(),
                                   manifest.settings.end());
  auto& settings = *wire->mutable_settings();
  settings["library_version"] = kVersion;
  const bool on_gpu = options.device.kind == Device::Kind::kCuda;
  settings["device"] = on_gpu ? "cuda" : "cpu";
  if (on_gpu) settings["nccl_version"] = options.nccl_version;
  return request;
}

v1::Fence MakeFence(const SessionOptions& options,
                    const v1::JoinResponse& joined) {
  v1::Fence fence;
  fence.set_cluster_id(joined.cluster_id());
  fence.set_term(joined.term());
  fence.set_job(options.job);
  fence.set_generation(joined.generation());
  fence.set_incarnation(options.incarnation.value());
  return fence;
}

void AppendMembers(const google::protobuf::RepeatedPtrField<v1::Member>& wire,
                   std::vector<JobMember>* members) {
  for (const v1::Member& member : wire) members->push_back(FromWire(member));
}

PreviousGeneration PreviousOf(const v1::JoinResponse& joined) {
  PreviousGeneration previous;
  previous.generation = joined.previous_generation();
  previous.world_size = joined.previous_world_size();
  previous.reason = joined.reason();
  previous.lost_count = joined.lost_count();
  for (const v1::LostMember& wire : joined.lost()) {
    LostPeer lost;
    lost.member = FromWire(wire.member());
    lost.reason = wire.reason();
    lost.left = wire.left();
    lost.error_norm = wire.error_norm();
    lost.error_step = wire.error_step();
    previous.lost.push_back(std::move(lost));
  }
  return previous;
}

absl::Duration ReattachSpread(int world_size) {
  return kSpreadPerMember * world_size;
}

absl::Duration StandInAfter(const SessionOptions& options, int world_size) {
  return options.stand_in_after + ReattachSpread(world_size);
}

}  // namespace coxswain
