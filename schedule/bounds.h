#ifndef COXSWAIN_SCHEDULE_BOUNDS_H_
#define COXSWAIN_SCHEDULE_BOUNDS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"

namespace coxswain::schedule {

// The bounds of what a peer sends about a schedule and of what is stored of it.
// The same functions are called on receipt, before a record is written and
// after one is read, so whatever is accepted can be stored and whatever is
// stored can be loaded.

// The highest round, and the highest step, of a ticket, a vote or a decision.
// The one that follows it is at most kMaxStep.
constexpr int64_t kMaxRound = kMaxStep - 1;

// A text of a ticket or a vote, and a text of a decision, which repeats several
// of them. All are sent to every rank.
constexpr size_t kMaxReasonBytes = 512;
constexpr size_t kMaxDecisionTextBytes = 2 * kMaxReasonBytes;

// Fails with INVALID_ARGUMENT, in a message of bounded length, unless the name
// has 1 to `max_bytes` characters of [A-Za-z0-9._-].
absl::Status CheckStreamName(absl::string_view name,
                             size_t max_bytes = kMaxStreamBytes);

// These fail with INVALID_ARGUMENT, naming the field and its value.
absl::Status CheckTicket(const Ticket& ticket);
absl::Status CheckVote(const Vote& vote);
// Version 0 is allowed: it is that of a proposal, and of the settings that
// workers bring.
absl::Status CheckPlan(const Plan& plan);
// Of a decision that a rank reports as its last one.
absl::Status CheckPosition(const Decision& last);

// Cut texts to their bounds and put them on one line. What has been cut stays
// as it is when it is cut again, so equal texts stay equal however often they
// travel.
std::string CutReason(absl::string_view reason);
void CutTexts(Ticket* ticket);
void CutTexts(Vote* vote);
void CutTexts(Decision* decision);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_BOUNDS_H_
