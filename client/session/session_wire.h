#ifndef COXSWAIN_CLIENT_SESSION_SESSION_WIRE_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_WIRE_H_

#include <vector>

#include "absl/time/time.h"
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

// How far apart the workers of a job come back that have lost one coordinator:
// a thousand of them within about a second.
absl::Duration ReattachSpread(int world_size);
// How long a lost stream may take to come back before anybody goes to the
// stand-in: no less than after a coordinator that has only cut the streams.
absl::Duration StandInAfter(const SessionOptions& options, int world_size);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_WIRE_H_
