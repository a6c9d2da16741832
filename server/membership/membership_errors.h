#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_ERRORS_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_ERRORS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/peer_text.h"
#include "server/membership/member.h"

namespace coxswain::server {

// Errors of membership with their typed detail (coxswain.v1.ErrorDetail).

struct StaleField {
  absl::string_view field;  // as in v1::StaleFence
  std::string expected;
  std::string actual;
};
absl::Status StaleFenceError(const StaleField& stale,
                             absl::string_view explanation);

// Its message has the first of the lines, its detail all of them.
absl::Status ManifestMismatchError(absl::string_view what,
                                   const std::vector<std::string>& differences);

// `missing_ranks`: of those that were expected back.
absl::Status MissingMembersError(absl::string_view message, int expected,
                                 const std::vector<WorkerIdentity>& present,
                                 const std::vector<int>& missing_ranks);

absl::Status NoSuchJobError(absl::string_view job);

// ALREADY_EXISTS: one of two live processes is to end.
absl::Status IdentityTakenError(absl::string_view job,
                                const WorkerIdentity& identity);
// The same, for a process that another one has replaced.
absl::Status IdentityLostError(absl::string_view job,
                               const WorkerIdentity& identity);
absl::Status SameIncarnationError(const WorkerIdentity& holder);

// Returns the answer to a worker that waits for a commit where the state store
// fails. Not ABORTED, which would be its round's end: another coordinator has
// taken over, and the worker is to ask that one.
absl::Status NotWrittenError(const absl::Status& status);

// CANCELLED: there is nothing left to do, and nothing is wrong.
absl::Status JobFinishedError(absl::string_view message);

// ABORTED; with the lost member as detail, where there is one.
absl::Status GenerationEndedError(absl::string_view reason,
                                  const std::optional<Member>& lost);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_ERRORS_H_
