#ifndef COXSWAIN_CLIENT_REDUCE_HOOK_STATE_H_
#define COXSWAIN_CLIENT_REDUCE_HOOK_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/device/tensor.h"

namespace coxswain {

class Communicator;
class Hook;

// A tensor of a hook's state, with a copy of its bytes (little-endian).
struct StateTensor {
  std::string kind;       // "error", "q", ...
  std::string parameter;  // name of the parameter that it belongs to
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  std::string data;
};

// What a hook must keep to continue later: keyed by parameter name and shape,
// never by bucket, so that it survives another bucket layout, and independent
// of the rank, so that it survives another world size.
struct HookState {
  std::string spec;  // canonical spec of the hook that saved it
  int64_t step = 0;  // committed steps
  std::map<std::string, std::string> options;
  std::vector<StateTensor> tensors;
};

// Return the bytes of a (partial) state, and a state of its bytes. Parse does
// not trust its input: it fails with DATA_LOSS, naming what does not fit.
std::string SerializeHookState(const HookState& state);
absl::StatusOr<HookState> ParseHookState(absl::string_view bytes);

// Returns one state joined from the ranks' shards. Fails with
// FAILED_PRECONDITION if they do not belong together, or a tensor is in two of
// them.
absl::StatusOr<HookState> MergeHookStates(std::vector<HookState> shards);

// Returns the whole state of a hook on every rank, merged from the ranks'
// shards: what a checkpoint would hold. Collective, between steps. A rank holds
// the merged state, its own shard's bytes and those of one other rank at a
// time. Fails with RESOURCE_EXHAUSTED, on all ranks and before any shard is
// sent, if the shards have more than `max_bytes` together; otherwise with the
// errors of SaveState, of MergeHookStates, and of the communicator. `timeout`
// bounds each collective.
absl::StatusOr<HookState> GatherHookState(Hook& hook,
                                          Communicator& communicator,
                                          int64_t max_bytes,
                                          absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_HOOK_STATE_H_
