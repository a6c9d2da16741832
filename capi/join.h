#ifndef COXSWAIN_CAPI_JOIN_H_
#define COXSWAIN_CAPI_JOIN_H_

#include "absl/status/statusor.h"
#include "capi/coxswain.h"
#include "client/session/session_options.h"

namespace coxswain::capi {

// Returns what a session is joined with: fields that are not given come from
// the environment. Fails with INVALID_ARGUMENT, naming the field or variable.
absl::StatusOr<SessionOptions> SessionOptionsOf(const cx_join_options& options);

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_JOIN_H_
