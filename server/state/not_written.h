#ifndef COXSWAIN_SERVER_STATE_NOT_WRITTEN_H_
#define COXSWAIN_SERVER_STATE_NOT_WRITTEN_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// What a client hears of a change that could not be committed: `what` says what
// was not done. ABORTED, the word of a store that another coordinator owns now,
// becomes UNAVAILABLE: to a client it would mean that its generation is over,
// while it only has to ask the other coordinator.
inline absl::Status NotWritten(absl::string_view what,
                               const absl::Status& status) {
  const absl::StatusCode code =
      absl::IsAborted(status) ? absl::StatusCode::kUnavailable : status.code();
  return absl::Status(code, absl::StrCat(what, ": ", status.message()));
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_NOT_WRITTEN_H_
