#ifndef COXSWAIN_SERVER_PLAN_PLAN_RECORD_H_
#define COXSWAIN_SERVER_PLAN_PLAN_RECORD_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/plan.h"

namespace coxswain::server {

// Returns a plan as it is kept in the state store. CheckPlan() allows whatever
// is encoded, and Decode fails with INVALID_ARGUMENT for what it does not
// allow; the caller of Decode adds the job to the error.
std::string EncodePlan(const schedule::Plan& plan);
absl::StatusOr<schedule::Plan> DecodePlan(absl::string_view record);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PLAN_PLAN_RECORD_H_
