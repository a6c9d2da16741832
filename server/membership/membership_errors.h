#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_ERRORS_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_ERRORS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/membership/member.h"

namespace coxswain::server {

// Text from a peer, cut to at most `max_bytes` with "..." at the end. UTF-8
// stays valid, because no message could be parsed that carried a half letter.
std::string Shorten(absl::string_view text, size_t max_bytes);

// Text from a peer on one line, whatever is in it; for people.
std::string OneLine(std::string text);

// The first byte of the UTF-8 letter that the byte at `at` belongs to.
size_t LetterStart(absl::string_view text, size_t at);

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

// What an error of the state store is to a worker that waits for a commit. Not
// ABORTED, which would be its round's end: another coordinator has taken over,
// and the worker is to ask that one.
absl::Status NotWrittenError(const absl::Status& status);

// CANCELLED: there is nothing left to do, and nothing is wrong.
absl::Status JobFinishedError(absl::string_view message);

// ABORTED; with the lost member as detail, where there is one.
absl::Status GenerationEndedError(absl::string_view reason,
                                  const std::optional<Member>& lost);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_ERRORS_H_
