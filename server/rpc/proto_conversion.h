#ifndef COXSWAIN_SERVER_RPC_PROTO_CONVERSION_H_
#define COXSWAIN_SERVER_RPC_PROTO_CONVERSION_H_

#include "proto/types.pb.h"
#include "server/generation/fence.h"
#include "server/membership/member_proto.h"

namespace coxswain::server {

// Between the messages of the wire and the structs of the core. What the core's
// types can hold is not judged here: the components validate what
// they are given. Members and manifests: see member_proto.h; what belongs to
// the schedule: see schedule/schedule_wire.h.

inline Fence FromProto(const v1::Fence& proto) {
  Fence fence;
  fence.cluster_id = proto.cluster_id();
  fence.term = Term(proto.term());
  fence.job = proto.job();
  fence.generation = Generation(proto.generation());
  fence.incarnation = Incarnation(proto.incarnation());
  fence.request_id = proto.request_id();
  return fence;
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_PROTO_CONVERSION_H_
