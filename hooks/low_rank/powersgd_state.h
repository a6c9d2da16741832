#ifndef COXSWAIN_HOOKS_LOW_RANK_POWERSGD_STATE_H_
#define COXSWAIN_HOOKS_LOW_RANK_POWERSGD_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook_state.h"
#include "hooks/low_rank/powersgd_matrix.h"

namespace coxswain {

// The powersgd hook's part of a checkpoint:
//   options     each option's value, and "parameters": a line for each
//               parameter of the model, "name float32[3,4]" (rank 0's shard)
//   "error"     the mean over the ranks of a matrix's error, in its parameter's
//               shape; in one rank's shard, absent if all are zero
//   "q"         the factor Q, shape [r, m]: columns one after the other
//               (rank 0's shard), absent if not yet drawn
// Errors are float32, or float64 where the parameter is.

// This rank's shard. Collective.
absl::StatusOr<HookState> SavePowerSgdState(
    const std::vector<ParameterSpec>& parameters,
    const AllLowRankMatrices& matrices,
    std::map<std::string, std::string> options, Communicator& communicator);

// What `matrices` become on one rank when `state` is taken over: W' times the
// mean error of the rank's shard, no error elsewhere, Q everywhere.
// FAILED_PRECONDITION if `state` was saved with other parameters or with
// options that it does not survive, or does not hold what it should.
absl::StatusOr<AllLowRankMatrices> LoadPowerSgdState(
    const HookState& state, const std::vector<ParameterSpec>& parameters,
    const AllLowRankMatrices& matrices,
    const std::map<std::string, std::string>& options, int rank,
    int world_size);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_POWERSGD_STATE_H_
