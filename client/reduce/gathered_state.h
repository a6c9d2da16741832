#ifndef COXSWAIN_CLIENT_REDUCE_GATHERED_STATE_H_
#define COXSWAIN_CLIENT_REDUCE_GATHERED_STATE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/hook.h"
#include "client/reduce/hook_state.h"

namespace coxswain {

// The whole state of a hook on every rank, merged from the ranks' shards: what
// a checkpoint would hold. Collective, between steps. A rank holds the merged
// state, its own shard's bytes and those of one other rank at a time.
// RESOURCE_EXHAUSTED, on all ranks and before any shard travels, if the shards
// have more than `max_bytes` together; otherwise the errors of SaveState, of
// MergeHookStates, and of the communicator. `timeout` bounds each collective.
absl::StatusOr<HookState> GatherHookState(Hook& hook,
                                          Communicator& communicator,
                                          int64_t max_bytes,
                                          absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_GATHERED_STATE_H_
