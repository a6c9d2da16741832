#ifndef COXSWAIN_CLIENT_RESUME_SESSION_CHECKPOINTS_H_
#define COXSWAIN_CLIENT_RESUME_SESSION_CHECKPOINTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/checkpoint/async_checkpoint.h"
#include "client/session/session.h"

namespace coxswain {

// Returns the options of an AsyncCheckpoint of all ranks of a session, which
// outlives it: who they are, and how they connect.
AsyncCheckpoint::Options SaverOf(Session& session);

// Returns the id of the job's newest checkpoint, the same on all ranks: that of
// rank 0, for which the others wait 5 minutes. All ranks call it. `number` is
// how often they have agreed in this session, 0 at first: it is raised once
// they have, and not by a call that fails before, so that it can be repeated.
//   NOT_FOUND          there is none
//   UNAVAILABLE        rank 0 could not list them
//   DEADLINE_EXCEEDED  rank 0 has not called it
absl::StatusOr<std::string> AgreeOnNewest(Session& session, int64_t* number);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RESUME_SESSION_CHECKPOINTS_H_
