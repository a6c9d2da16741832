#ifndef COXSWAIN_HOOKS_DEVICE_DEVICE_EXCHANGE_H_
#define COXSWAIN_HOOKS_DEVICE_DEVICE_EXCHANGE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"
#include "client/comm/device_queue.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"

namespace coxswain {

// What the exchanges of buckets in a GPU's memory have in common.

inline bool IsOnDevice(const Bucket& bucket) {
  return bucket.data.device.kind != Device::Kind::kCpu;
}

// The communicator's queue. INVALID_ARGUMENT, with the back end and the device,
// if it moves CPU memory only or that of another GPU than the bucket's.
absl::StatusOr<DeviceQueue*> QueueFor(absl::string_view hook,
                                      const Bucket& bucket,
                                      Communicator& communicator);

// What comes on the queue's stream waits until the gradients stand in the
// bucket.
absl::Status AwaitGradients(const Bucket& bucket, DeviceQueue& queue);

// How a collective began whose end is known from a later Mark: its error if it
// has ended with one.
absl::Status Begun(const WorkPtr& work);

// An exchange that waits for the host once, at its end: the first Advance
// enqueues the wait for the gradients and then what `enqueue` does, which is to
// leave the average in the bucket; its Work ends when that has run.
std::unique_ptr<Exchange> MakeDeviceExchange(
    const Bucket& bucket, DeviceQueue& queue,
    std::function<absl::Status()> enqueue);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_DEVICE_DEVICE_EXCHANGE_H_
