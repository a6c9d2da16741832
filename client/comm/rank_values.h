#ifndef COXSWAIN_CLIENT_COMM_RANK_VALUES_H_
#define COXSWAIN_CLIENT_COMM_RANK_VALUES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"

namespace coxswain {

// A few numbers of each rank, by which ranks agree on something: whether all
// of them succeeded, which step is the highest, how much each has to send. Not
// for gradients: each call allocates, and waits in the calling thread.
//
// Both are collective: all ranks pass as many values, and get the same answer.
// They fail as the communicator's collectives do, and with DEADLINE_EXCEEDED
// after `timeout`.

// Returns the sum, minimum or maximum over all ranks of each value.
absl::StatusOr<std::vector<int64_t>> ReduceValues(
    Communicator& communicator, const std::vector<int64_t>& own, ReduceOp op,
    absl::Duration timeout);

// Returns the values of all ranks, those of rank 0 first.
absl::StatusOr<std::vector<int64_t>> GatherValues(
    Communicator& communicator, const std::vector<int64_t>& own,
    absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_RANK_VALUES_H_
