#ifndef COXSWAIN_HOOKS_INT8_INT8_STATE_H_
#define COXSWAIN_HOOKS_INT8_INT8_STATE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook_state.h"
#include "hooks/int8/int8_errors.h"

namespace coxswain {

// The int8 hook's part of a checkpoint:
//   options        each option's value, "world_size", and "parameters" (see
//                  hooks/parameter_state.h); rank 0's shard
//   "error/R"      rank R's E1 + W E2, in its parameter's shape
//   "slice/R/B"    rank R's E1 (first row) and E2 (second row) of the elements
//                  from B on of which it has an E2, shape [2, n]
// Either all ranks have an "error/R" of a parameter, or none. The mean over the
// ranks of the errors is all that has been left out so far; the slices serve
// only to go on bit by bit on as many ranks. Errors are float32, or float64
// where the parameter is.

// This rank's shard; with errors, or with the options only.
HookState SaveInt8State(const std::vector<ParameterSpec>& parameters,
                        const AllInt8Parameters& current, bool with_errors,
                        std::map<std::string, std::string> options, int rank,
                        int world_size);

// What `current` becomes on one rank when `state` is taken over: that rank's
// errors if as many ranks saved it, otherwise the mean of all ranks' errors,
// which is logged. FAILED_PRECONDITION if `state` was saved with other
// parameters or with options that it does not survive, or does not hold what it
// should.
absl::StatusOr<AllInt8Parameters> LoadInt8State(
    const HookState& state, const std::vector<ParameterSpec>& parameters,
    const AllInt8Parameters& current,
    const std::map<std::string, std::string>& options, int rank,
    int world_size);

// Returns how many ranks saved a state; FAILED_PRECONDITION if it does not say
// so.
absl::StatusOr<int> SavedWorldSize(const HookState& state);

// The same of one rank alone (Hook::SaveOwn), with rank 0's options:
//   "own_error"      its E1, in the parameter's shape
//   "own_average/B"  its E2 of the elements from B on, shape [n]
HookState SaveOwnInt8State(const std::vector<ParameterSpec>& parameters,
                           const AllInt8Parameters& current,
                           std::map<std::string, std::string> options,
                           int world_size);

// What `current` becomes on a rank of `world_size` when it takes such a state
// over: the errors' sum E1 + W E2 is multiplied by `scale`. With 0, its errors
// are zero wherever the state has any. Errors as of LoadInt8State.
absl::StatusOr<AllInt8Parameters> LoadOwnInt8State(
    const HookState& state, const std::vector<ParameterSpec>& parameters,
    const AllInt8Parameters& current,
    const std::map<std::string, std::string>& options, int world_size,
    double scale);

// Returns the 2-norm of E1 + W E2 over all parameters, in double.
double NormOf(const AllInt8Parameters& current, int world_size);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_INT8_INT8_STATE_H_
