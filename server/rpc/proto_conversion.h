#ifndef COXSWAIN_SERVER_RPC_PROTO_CONVERSION_H_
#define COXSWAIN_SERVER_RPC_PROTO_CONVERSION_H_

#include "absl/status/statusor.h"
#include "proto/types.pb.h"
#include "server/generation/fence.h"
#include "server/generation/schedule_types.h"
#include "server/membership/member_proto.h"

namespace coxswain::v1 {
class Decision;
}

namespace coxswain::server {

struct AttachEvent;

// Between the messages of the wire and the structs of the core. What can be
// said in the core's words is not judged here: the rooms validate what they are
// given. Members and manifests: see member_proto.h.

Fence FromProto(const v1::Fence& fence);
// INVALID_ARGUMENT: a term that this coordinator does not know, or a value that
// the term cannot have.
absl::StatusOr<Plan> FromProto(const v1::Plan& plan);

v1::Plan ToProto(const Plan& plan);
v1::Decision DecisionToWire(const AttachEvent& event);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_PROTO_CONVERSION_H_
