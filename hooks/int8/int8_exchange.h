#ifndef COXSWAIN_HOOKS_INT8_INT8_EXCHANGE_H_
#define COXSWAIN_HOOKS_INT8_INT8_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/comm/communicator.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/hook.h"
#include "hooks/int8/int8_errors.h"
#include "hooks/scratch.h"

namespace coxswain {

class DeviceQueue;
class Int8Device;

// What one bucket's exchange needs to know of its hook. All of it outlives
// the exchange.
struct Int8Context {
  const std::string& spec;
  const std::vector<ParameterSpec>& parameters;
  ScratchPool& scratch;
  std::vector<NonFiniteGradient>& non_finite;  // appended to
  int64_t step = 0;                            // committed ones
  int64_t block = 0;
  bool error_feedback = true;
};

// The exchange of one bucket (formulas: int8.h). T is float, or double if the
// gradients are. `state` has an entry per gradient of the bucket, in order.
// Three calls of Advance; a bucket that is not finite takes a fourth, on all
// ranks.
template <typename T>
std::unique_ptr<Exchange> MakeInt8Exchange(const Bucket& bucket,
                                           Communicator& communicator,
                                           std::vector<Int8Parameter<T>*> state,
                                           const Int8Context& context);

// The same where each rank keeps the averages of its own slice only
// (Hook::PrepareSlice): in place of E2 and the all-gather, the owner keeps the
// mean of what it has received as it is. Two calls of Advance; a bucket that is
// not finite takes a third, on all ranks.
//
// Blocks are cut from slices, not from the bucket. A slice on the wire ends in
// 4 bytes that are not zero if the sender's bucket is not finite or, in
// float32, so large that a sum over the ranks might not be: so all ranks know
// of it without another collective. All of the bucket is NaN then.
template <typename T>
std::unique_ptr<Exchange> MakeInt8SliceExchange(
    const Bucket& bucket, const BucketSlices& slices,
    Communicator& communicator, std::vector<Int8Parameter<T>*> state,
    const Int8Context& context);

// The exchange of one bucket in a GPU's memory: that of MakeInt8Exchange, and
// its bits. The first call of Advance enqueues all of it on the stream of
// `queue`, which is the communicator's; in the second one the averages stand in
// the bucket. If a bucket is not finite its gradients are still there then, and
// a third call ends it, on all ranks.
//
// Kernels: one before each of the two collectives, two after them, whatever the
// number of gradients; one more where errors change their owners. Host and
// device exchange a table, of a few lines once the errors lie as the gradients
// do, and a flag.
//
// All that is passed in outlives the exchange.
template <typename T>
std::unique_ptr<Exchange> MakeInt8DeviceExchange(
    const Bucket& bucket, Communicator& communicator, DeviceQueue& queue,
    std::vector<Int8Parameter<T>*> state, const Int8Context& context,
    Int8Device& device);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_INT8_INT8_EXCHANGE_H_
