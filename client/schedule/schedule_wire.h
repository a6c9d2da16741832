#ifndef COXSWAIN_CLIENT_SCHEDULE_SCHEDULE_WIRE_H_
#define COXSWAIN_CLIENT_SCHEDULE_SCHEDULE_WIRE_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/schedule/job_plan.h"
#include "client/schedule/step_agent.h"
#include "client/schedule/step_gate.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// The schedule's messages, to and from the structs of this library.

// FAILED_PRECONDITION names the terms that this library does not know, or
// cannot read: the coordinator is newer.
absl::StatusOr<JobPlan> FromWire(const v1::Plan& wire);
absl::StatusOr<StepDecision> FromWire(const v1::Decision& wire);

v1::AttachRequest ToWire(const std::string& stream,
                         const StepAgent::Outgoing& outgoing);
v1::AttachRequest ToWire(const std::string& stream,
                         const StepAgent::Heard& heard);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SCHEDULE_SCHEDULE_WIRE_H_
