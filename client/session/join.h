#ifndef COXSWAIN_CLIENT_SESSION_JOIN_H_
#define COXSWAIN_CLIENT_SESSION_JOIN_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/data_key.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/retry.h"
#include "client/session/job.h"
#include "client/session/session_options.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// Converts a session's messages from and to the structs of this library.

// Returns the request, without its timeout. `options` are complete: defaults
// have been filled in.
v1::JoinRequest MakeJoinRequest(const SessionOptions& options,
                                const JobManifest& manifest);
v1::Fence MakeFence(const SessionOptions& options,
                    const v1::JoinResponse& joined);
void AppendMembers(const google::protobuf::RepeatedPtrField<v1::Member>& wire,
                   std::vector<JobMember>* members);
// Returns whether this worker encrypts its connections with others.
bool EncryptsData(const SessionOptions& options);
// Takes the generation's key out of the answer; null: there is none.
std::shared_ptr<const DataKey> TakeDataKey(const SessionOptions& options,
                                           v1::JoinResponse* joined);
PreviousGeneration PreviousOf(const v1::JoinResponse& joined);

// Returns how a session repeats calls that the coordinator has not answered.
RetryPolicy RetriesOf(const SessionOptions& options);
// Returns how a member of a generation does that where training stands still
// meanwhile: its pauses grow as far only as so many members need for not
// coming all at once, and vary in a job of few members, too.
RetryPolicy RetriesOfMember(const SessionOptions& options, int world_size);

// Returns the time over which the workers of a job that have lost one
// coordinator attach again: a thousand of them within about a second.
absl::Duration ReattachSpread(int world_size);
// Returns how long a lost stream may take to come back before a rank attaches
// to the fallback coordinator: at least as long as after a coordinator that has
// only cut the streams.
absl::Duration FallbackAfter(const SessionOptions& options, int world_size);

// Runs the first part of Session::Join: repeats the Join until the coordinator
// answers, logs meanwhile what it waits for, and describes errors. Fills in the
// request's address, if empty, and its timeout.
absl::StatusOr<v1::JoinResponse> JoinJob(const SessionOptions& options,
                                         CoordinatorStub& stub,
                                         v1::JoinRequest* request);

// Fails with FAILED_PRECONDITION if the coordinator has found that the members
// are on several hosts and one of them has a loopback address; the message
// names the host, and what to set.
absl::Status CheckAddresses(const v1::JoinResponse& joined);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_JOIN_H_
