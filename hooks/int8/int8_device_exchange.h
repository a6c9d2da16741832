#ifndef COXSWAIN_HOOKS_INT8_INT8_DEVICE_EXCHANGE_H_
#define COXSWAIN_HOOKS_INT8_INT8_DEVICE_EXCHANGE_H_

#include <memory>
#include <vector>

#include "client/comm/communicator.h"
#include "client/comm/device_queue.h"
#include "client/reduce/hook.h"
#include "hooks/int8/int8_device.h"
#include "hooks/int8/int8_errors.h"
#include "hooks/int8/int8_exchange.h"

namespace coxswain {

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

#endif  // COXSWAIN_HOOKS_INT8_INT8_DEVICE_EXCHANGE_H_
