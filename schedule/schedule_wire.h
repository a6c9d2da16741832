#ifndef COXSWAIN_SCHEDULE_SCHEDULE_WIRE_H_
#define COXSWAIN_SCHEDULE_SCHEDULE_WIRE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/rendezvous.pb.h"
#include "schedule/plan.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"

namespace coxswain::schedule {

// The wire form of the schedule, for the worker, the coordinator and the
// fallback coordinator: the only code that puts its structs into messages and
// takes them out. What a peer has sent is decoded and checked against bounds.h;
// the functions fail with INVALID_ARGUMENT if a number or a text is beyond its
// bound, or if a plan has a setting or a value that is not known here.

v1::Ticket ToWire(absl::string_view stream, const Ticket& ticket);
absl::StatusOr<Ticket> TakeTicket(v1::Ticket* wire);

v1::Vote ToWire(absl::string_view stream, const Vote& vote);
absl::StatusOr<Vote> TakeVote(v1::Vote* wire);

v1::Decision ToWire(absl::string_view stream, const Decision& decision);
// Returns the decision of a coordinator that the worker follows. Fails as
// PlanOfCoordinator if its plan cannot be followed.
absl::StatusOr<Decision> TakeDecision(v1::Decision* wire);
// Returns the last decision that a rank has received, with its texts cut to
// their bounds.
absl::StatusOr<Decision> TakePosition(v1::Position* wire);

// Returns the event that carries a grant, a decision or a warning.
v1::AttachEvent ToWire(const Message& message);

v1::GradientSums ToWire(const GradientSums& sums);
GradientSums SumsFromWire(const v1::GradientSums& wire);

v1::Plan ToWire(const Plan& plan);
// Puts into a received plan the settings of its own fields, the terms of these
// names, and where it begins; leaves all else as a newer version may have sent
// it.
void ChangeWire(const Plan& plan, const std::vector<std::string>& terms,
                v1::Plan* wire);
// Returns a plan with terms that may contradict each other: see
// Terms::Validate.
absl::StatusOr<Plan> PlanFromWire(const v1::Plan& wire);
// The same for a worker. Fails with FAILED_PRECONDITION, naming what is not
// known: the coordinator is of a newer version.
absl::StatusOr<Plan> PlanOfCoordinator(const v1::Plan& wire);
// Returns what is known of a plan, for display. The terms that are not, and
// those with values that are not, are added to `unknown`.
Plan KnownPartOf(const v1::Plan& wire,
                 std::map<std::string, std::string>* unknown);

// The settings that have fields of their own in a manifest; its terms are
// those of v1.Manifest.terms.
void SettingsToWire(const StepSettings& settings, v1::Manifest* wire);
StepSettings SettingsFromWire(const v1::Manifest& wire);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_SCHEDULE_WIRE_H_
