#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBER_PROTO_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBER_PROTO_H_

#include "base/ids.h"
#include "proto/types.pb.h"
#include "server/membership/member.h"

namespace coxswain::server {

// Members and manifests as messages: of the wire, of errors' details, and of
// the state store's records. Nothing is checked here.

v1::WorkerIdentity ToProto(const WorkerIdentity& identity);
v1::Member ToProto(const Member& member);
v1::Manifest ToProto(const Manifest& manifest);

WorkerIdentity FromProto(const v1::WorkerIdentity& proto);
Member FromProto(const v1::Member& proto);
Manifest FromProto(const v1::Manifest& proto);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBER_PROTO_H_
