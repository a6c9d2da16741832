#ifndef COXSWAIN_CLIENT_SESSION_SESSION_WIRE_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_WIRE_H_

#include <vector>

#include "client/session/job.h"
#include "client/session/session_options.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// A session's messages, from and to the structs of this library.

// All but the timeout. `options` are complete: what they leave to defaults has
// been filled in.
v1::JoinRequest MakeJoinRequest(const SessionOptions& options,
                                const JobManifest& manifest);
v1::Fence MakeFence(const SessionOptions& options,
                    const v1::JoinResponse& joined);
void AppendMembers(const google::protobuf::RepeatedPtrField<v1::Member>& wire,
                   std::vector<JobMember>* members);
PreviousGeneration PreviousOf(const v1::JoinResponse& joined);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_WIRE_H_
