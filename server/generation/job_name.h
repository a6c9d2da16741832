#ifndef COXSWAIN_SERVER_GENERATION_JOB_NAME_H_
#define COXSWAIN_SERVER_GENERATION_JOB_NAME_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// Whether a name may be that of a job: 1 to 128 characters of [A-Za-z0-9._-],
// and not "." or "..", because it is also the name of a folder. Otherwise
// INVALID_ARGUMENT.
absl::Status ValidateJobName(absl::string_view job);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GENERATION_JOB_NAME_H_
