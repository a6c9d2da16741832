#ifndef COXSWAIN_SCHEDULE_PLAN_TERMS_H_
#define COXSWAIN_SCHEDULE_PLAN_TERMS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "base/schedule_terms.h"

namespace coxswain::schedule {

// The terms that a peer sent, if they can be those of a plan; INVALID_ARGUMENT
// says which cannot, in a message of bounded length. Called where manifests and
// proposals come in.
absl::StatusOr<ScheduleTerms> ReadTerms(
    const std::map<std::string, std::string>& values);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_PLAN_TERMS_H_
