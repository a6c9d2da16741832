#ifndef COXSWAIN_HOOKS_PARAMETER_STATE_H_
#define COXSWAIN_HOOKS_PARAMETER_STATE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook_state.h"

// What hooks check that keep state by parameter. Pure functions.

namespace coxswain {

// INVALID_ARGUMENT if no world has this size, or two parameters have one name.
absl::Status CheckParameters(const std::vector<ParameterSpec>& parameters,
                             int world_size);

// INVALID_ARGUMENT if a gradient of the bucket is not that of a parameter.
absl::Status CheckSlots(const Bucket& bucket,
                        const std::vector<ParameterSpec>& parameters);

// Returns the entry "parameters" of a state's options: a line for each
// parameter of the model, "name float32[3,4]", by name. In rank 0's shard.
std::string ParameterLines(const std::vector<ParameterSpec>& parameters);

// FAILED_PRECONDITION with what differs, unless the state was saved with these
// parameters and these options, but for those that may change.
absl::Status CheckStateFits(absl::string_view hook, const HookState& state,
                            const std::vector<ParameterSpec>& parameters,
                            const std::map<std::string, std::string>& options,
                            const std::set<std::string>& may_change);

// FAILED_PRECONDITION: the state's tensor is not what it should be.
absl::Status UnfitTensor(absl::string_view hook, const StateTensor& tensor,
                         absl::string_view why);

// Returns the values of a tensor of T (float or double) and of this shape. As
// UnfitTensor if it is none, or holds values that are not finite.
template <typename T>
absl::StatusOr<std::vector<T>> ReadTensor(absl::string_view hook,
                                          const StateTensor& tensor,
                                          const std::vector<int64_t>& shape);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_PARAMETER_STATE_H_
