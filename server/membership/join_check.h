#ifndef COXSWAIN_SERVER_MEMBERSHIP_JOIN_CHECK_H_
#define COXSWAIN_SERVER_MEMBERSHIP_JOIN_CHECK_H_

#include "absl/status/status.h"
#include "server/membership/membership_types.h"
#include "server/options/options.h"

namespace coxswain::server {

// Checks that a Join is within the bounds, whatever its job does. Fails with
// INVALID_ARGUMENT or RESOURCE_EXHAUSTED, naming the field.
absl::Status CheckJoin(const JoinRequest& request,
                       const MembershipOptions& options);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_JOIN_CHECK_H_
