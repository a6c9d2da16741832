#ifndef COXSWAIN_HOOKS_ALLREDUCE_H_
#define COXSWAIN_HOOKS_ALLREDUCE_H_

#include <memory>
#include <string>

#include "client/reduce/hook.h"
#include "hooks/device/device_exchange.h"
#include "hooks/hook_row.h"

namespace coxswain {

// `allreduce`: each rank divides its gradients by the number of ranks, in
// their own type, and the ranks sum them.
//
// Cost per bucket of N elements: 1 collective, N elements of the gradient's
// type, no memory. Numerics: one rounding by the division, then the back
// end's sum. The baseline; where the network is the limit, use another.
//
// On slices: a reduce-scatter of the bucket and its padding, with the bits of
// the all-reduce wherever the back end sums both in one order (shm does).
//
// A bucket on a GPU is divided by a kernel there, which moves 8 bytes an
// element of float32, and summed on the same stream without the host between.
std::unique_ptr<Hook> MakeAllReduceHook(std::string spec);

HookRow AllReduceRow();

// Returns the exchange of that hook, for hooks that wait for their first step,
// in the memory of the CPU or a GPU. On a GPU it is recorded in `sequences`,
// which outlives the exchange, if that is not null.
absl::StatusOr<std::unique_ptr<Exchange>> PrepareAllReduce(
    const Bucket& bucket, Communicator& communicator,
    SequenceCache* sequences = nullptr);

// The same on slices (Hook::PrepareSlice).
absl::StatusOr<std::unique_ptr<Exchange>> PrepareReduceScatter(
    const Bucket& bucket, const BucketSlices& slices,
    Communicator& communicator, SequenceCache* sequences = nullptr);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_ALLREDUCE_H_
