#ifndef COXSWAIN_CLIENT_SESSION_EXPLAIN_H_
#define COXSWAIN_CLIENT_SESSION_EXPLAIN_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/session/session.h"

namespace coxswain {

// What to tell the user of an error in a collective. When a peer dies, its
// broken connection is often noticed before the coordinator's word arrives
// that says who it was: this waits for that word, `patience` at most, and
// returns it, or else `error` itself. OK stays OK and does not wait.
//
// Any thread; `session` is only used during the call.
absl::Status Explain(Session& session, const absl::Status& error,
                     absl::Duration patience = absl::Seconds(3));

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_EXPLAIN_H_
