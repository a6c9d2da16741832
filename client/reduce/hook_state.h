#ifndef COXSWAIN_CLIENT_REDUCE_HOOK_STATE_H_
#define COXSWAIN_CLIENT_REDUCE_HOOK_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/device/tensor.h"

namespace coxswain {

// A tensor of a hook's state, with a copy of its bytes (little-endian).
struct StateTensor {
  std::string kind;       // "error", "q", ...
  std::string parameter;  // name of the parameter that it belongs to
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
  std::string data;
};

// What a hook must keep to go on later: keyed by parameter name and shape,
// never by bucket, so that it survives another bucket layout, and free of
// rank, so that it survives another world size.
struct HookState {
  std::string spec;  // canonical spec of the hook that saved it
  int64_t step = 0;  // committed steps
  std::map<std::string, std::string> options;
  std::vector<StateTensor> tensors;
};

// The bytes of a (partial) state, and back. Parse never trusts its input:
// DATA_LOSS says what does not fit.
std::string SerializeHookState(const HookState& state);
absl::StatusOr<HookState> ParseHookState(absl::string_view bytes);

// Joins the shards that the ranks saved into one state. FAILED_PRECONDITION
// if they do not belong together, or a tensor is there twice.
absl::StatusOr<HookState> MergeHookStates(std::vector<HookState> shards);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_HOOK_STATE_H_
