#ifndef COXSWAIN_CLIENT_REDUCE_ROOT_BROADCAST_H_
#define COXSWAIN_CLIENT_REDUCE_ROOT_BROADCAST_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Copies root's data to all ranks, small spans packed together. All ranks pass
// spans of the same sizes in the same order, in memory that the communicator
// moves: the CPU's or, with a device_queue, of its GPU too, with the contents
// that they have when that queue's stream gets to them. Fails with
// UNIMPLEMENTED, before anything is sent, for a span elsewhere. Any other error
// is returned once the spans are not used any more, or, if the communicator,
// which is aborted then, does not end, another `timeout` later.
absl::Status BroadcastSpans(Communicator& communicator,
                            const std::vector<Span>& spans, int root,
                            absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_ROOT_BROADCAST_H_
