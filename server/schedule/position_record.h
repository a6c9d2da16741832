#ifndef COXSWAIN_SERVER_SCHEDULE_POSITION_RECORD_H_
#define COXSWAIN_SERVER_SCHEDULE_POSITION_RECORD_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/ticket.h"

namespace coxswain::server {

// Returns the last decision of a stream as it is kept in the state store: a
// Position of proto/state.proto. What is for the history only is left out.
// CheckPosition() allows whatever is encoded, and Decode fails with
// INVALID_ARGUMENT for what it does not allow; the caller of Decode adds the
// rank to the error.
std::string EncodePosition(const schedule::Decision& decision);
absl::StatusOr<schedule::Decision> DecodePosition(absl::string_view record);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_SCHEDULE_POSITION_RECORD_H_
