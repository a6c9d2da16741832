#ifndef COXSWAIN_CLI_JOB_WORDS_H_
#define COXSWAIN_CLI_JOB_WORDS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain {

// What `coxswain status` and `coxswain why` have in common: sentences about a
// job, for display. What peers have sent is shown on one line.

// Returns a duration of so many milliseconds for display, "2m13s": whole
// seconds where there are any.
std::string AgeText(int64_t milliseconds);

// Returns the moment that lies so far back: "2023-11-14 22:11:07 UTC".
std::string MomentText(int64_t milliseconds, absl::Time now);
// Both: "2m13s ago (2023-11-14 22:11:07 UTC)".
std::string AgoText(int64_t milliseconds, absl::Time now);

// Returns the line about the end of a job's last generation or round, with its
// end; empty where there was none. `milliseconds`: since then; 0: not known.
std::string LastEndLine(const std::string& last_event, int64_t milliseconds,
                        absl::Time now);

// Returns the line about what a job that forms waits for; empty where it does
// not form.
std::string FormingLine(const std::string& forming);

// Returns what has ended without what a job that forms waits for, which the
// coordinator adds to it.
std::string WithoutForming(const std::string& last_event,
                           const std::string& forming);

// Returns what to do about the failure that a sentence of the coordinator's
// reports; empty where it reports none that is known. docs/operations.md has
// the same in its table.
std::string NextStep(absl::string_view failure);

// Returns whether the end of a generation was no failure: all had left, and
// their work was done.
bool EndedWell(absl::string_view last_event);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_JOB_WORDS_H_
