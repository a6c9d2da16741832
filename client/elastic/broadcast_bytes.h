#ifndef COXSWAIN_CLIENT_ELASTIC_BROADCAST_BYTES_H_
#define COXSWAIN_CLIENT_ELASTIC_BROADCAST_BYTES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Returns root's bytes, of whose number only root knows. Collective: all ranks
// call it; `bytes` counts at root alone. A rank that does not `want` them takes
// part, and gets nothing.
//
// RESOURCE_EXHAUSTED, on all ranks and before anything is allocated, for more
// than `max_bytes`. Errors of the communicator as they are.
absl::StatusOr<std::string> BroadcastBytes(Communicator& communicator,
                                           absl::string_view bytes, int root,
                                           bool want, int64_t max_bytes,
                                           absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_BROADCAST_BYTES_H_
